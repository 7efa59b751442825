"""``create_loader``: timm's, with fastload's ``PrefetchLoader`` in the place of timm's."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from timm.data.loader import create_loader as create_timm_loader
from timm.data.mixup import FastCollateMixup

from fastload.loader import PrefetchLoader
from fastload.offload.timm import erasing
from fastload.transforms import Compose, Normalize

__all__ = ["TimmLoader", "create_loader"]


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
        return collate if isinstance(collate, FastCollateMixup) else None


def create_loader(
    *args: Any,
    depth: int = 2,
    static: bool = False,
    seed: int = 0,
    memory_format: torch.memory_format = torch.contiguous_format,
    **kwargs: Any,
) -> Any:
    """Make the loader that ``timm.data.create_loader`` makes of these arguments, with fastload's prefetcher.

    >>> from timm.data import ImageDataset  # doctest: +SKIP
    >>> loader = create_loader(ImageDataset("train"), 224, 256, is_training=True, re_prob=0.25)  # doctest: +SKIP

    Images are normalised with the same mean, std and ``img_dtype``, and erased with the same probability and mode.
    ``mixup_enabled``, ``sampler`` and ``dataset`` are as timm's training script uses them.

    Args:
        *args: those of ``timm.data.create_loader``.
        depth: as in :class:`fastload.PrefetchLoader`.
        static: the same.
        seed: the same; it decides what is erased.
        memory_format: of the images, such as ``torch.channels_last``.
        **kwargs: those of ``timm.data.create_loader``.

    Returns:
        a :class:`TimmLoader`; with ``use_prefetcher=False`` timm's ``DataLoader``, which normalises on the host.

    Raises:
        ValueError: ``re_mode="rand"``, ``re_count`` above 1 or ``re_split``: erasing that fastload does not do.
    """
    given = inspect.signature(create_timm_loader).bind(*args, **kwargs)
    given.apply_defaults()
    settings = given.arguments
    theirs = create_timm_loader(*args, **kwargs)
    if not settings["use_prefetcher"]:
        return theirs
    channels = theirs.mean.numel()
    mean, std = (_per_channel(settings[name], channels) for name in ("mean", "std"))
    steps: list[Any] = [Normalize(mean, std, dtype=theirs.img_dtype, memory_format=memory_format)]
    if theirs.random_erasing is not None:
        steps.append(erasing(theirs.random_erasing))
    return TimmLoader(
        theirs.loader, transform=Compose(steps), device=theirs.device, depth=depth, static=static, seed=seed
    )


def _per_channel(values: Sequence[float], channels: int) -> Sequence[float]:
    """Statistics of a model with other channels are averaged, as timm does."""
    return values if len(values) == channels else (sum(values) / len(values),) * channels
