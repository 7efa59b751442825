"""``TimmLoader``: what stands in the place of timm's prefetcher, and what that does on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from fastload.loader import PrefetchLoader
from fastload.offload.error import CannotOffloadError
from fastload.offload.handover import HandedImage
from fastload.offload.timm import erasing
from fastload.structure.loaded_types import loaded_types
from fastload.transforms import Normalize, Transform

__all__ = ["TimmLoader", "device_steps", "fast_collate", "is_prefetcher"]


class TimmLoader(PrefetchLoader):
    """A ``PrefetchLoader`` with the switch of timm's."""

    @property
    def mixup_enabled(self) -> bool:
        """Whether the wrapped loader's ``FastCollateMixup`` mixes; False if it has none. It can be set."""
        mixup = self._mixup
        return mixup is not None and bool(mixup.mixup_enabled)

    @mixup_enabled.setter
    def mixup_enabled(self, enabled: bool) -> None:
        if self._mixup is not None:
            self._mixup.mixup_enabled = enabled

    @property
    def _mixup(self) -> Any:
        collate = getattr(self.loader, "collate_fn", None)
        return collate if _is_mixup(collate) else None


def is_prefetcher(loader: Any) -> bool:
    """Whether it is what ``timm.data.create_loader`` returns."""
    return isinstance(loader, loaded_types("timm.data.loader", "PrefetchLoader"))


def device_steps(theirs: Any, memory_format: torch.memory_format = torch.contiguous_format) -> list[Transform]:
    """What timm's prefetcher does with images on the device.

    Raises:
        ValueError: it erases as fastload does not.
    """
    mean, std = ((values.flatten().double() / 255).tolist() for values in (theirs.mean, theirs.std))
    steps: list[Transform] = [Normalize(mean, std, dtype=theirs.img_dtype, memory_format=memory_format)]
    return steps if theirs.random_erasing is None else [*steps, erasing(theirs.random_erasing)]


def fast_collate(loader: Any) -> Any:
    """The ``collate_fn`` of a loader inside timm's prefetcher, for images that are handed over.

    Raises:
        CannotOffloadError: the function computes with images.
    """
    if _is_mixup(loader.collate_fn):
        raise CannotOffloadError(
            "FastCollateMixup mixes in the workers: make the loader without it, and call fl.offload(loader, "
            "transform=T.MixUp(...))"
        )
    is_timms = getattr(loader.collate_fn, "__module__", None) == "timm.data.loader"
    return _collated if is_timms else loader.collate_fn


def _collated(samples: Sequence[Any]) -> Any:
    images, targets = zip(*samples, strict=True)
    if not all(isinstance(image, HandedImage) for image in images):
        raise CannotOffloadError("num_aug_splits makes several images of a sample")
    labels = default_collate(list(targets))
    return torch.stack(list(images)), labels.long() if labels.ndim == 1 else labels


def _is_mixup(collate: Any) -> bool:
    return isinstance(collate, loaded_types("timm.data.mixup", "FastCollateMixup"))
