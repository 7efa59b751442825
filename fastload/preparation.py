"""What happens to each batch on the side stream: it is copied, and its images are transformed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fastload.images import find_images, is_single, refuse_targets, remark_on_range
from fastload.nested import Path, tensors
from fastload.streams import NoStream, SideStream
from fastload.transfer import Sent, send
from fastload.transforms import Compose, Key, Normalize, RandomHorizontalFlip, Transform

__all__ = ["Arrival", "Preparation"]


@dataclass
class Arrival:
    """A batch that has been given to the device, and the point from which it is whole."""

    sent: Sent
    ready: Any
    remark: str | None


class Preparation:
    """What happens to each batch of one pass on the side stream: copy, then transform the images."""

    def __init__(self, side: SideStream | NoStream, transform: Callable[..., torch.Tensor] | None, key: Key) -> None:
        self.side = side
        self._transform = transform
        self._normalize = _normalize_of(transform)
        self._key = key

    def __call__(self, batch: Any) -> Arrival:
        images = self._images(batch)
        remark = self._remark(images)
        sent = send(batch, self.side.device)
        copied = self.side.prepared()
        if self._transform is not None:
            moved = {path: sent.tensors[path] for path in images}
            sent.replace(self._transformed(self._transform, moved))
        arrival = Arrival(sent, self.side.prepared(), remark)
        copied.wait()  # the loader may write to its tensors again as soon as it is asked for the next batch
        return arrival

    def _images(self, batch: Any) -> dict[Path, torch.Tensor]:
        if self._transform is None:
            return {}
        found = tensors(batch)
        if getattr(self._transform, "moves_pixels", False):
            refuse_targets(found)
        return find_images(found, batch)

    def _transformed(
        self, transform: Callable[..., torch.Tensor], images: dict[Path, torch.Tensor]
    ) -> dict[Path, torch.Tensor]:
        single = 0
        batched = 0
        results = {}
        for path, image in images.items():
            if is_single(image):
                key, single = self._key.advanced(single), single + 1
            else:
                key, batched = self._key, len(image)
            results[path] = transform(image, key) if isinstance(transform, Transform) else transform(image)
            if not isinstance(results[path], torch.Tensor):
                raise TypeError(f"a transform must return a tensor of images; {transform!r} returned {results[path]!r}")
        self._key = self._key.advanced(max(single, batched))
        return results

    def _remark(self, images: dict[Path, torch.Tensor]) -> str | None:
        """Look once at what is normalised, while it is still on the host."""
        normalize, self._normalize = self._normalize, None
        image = next(iter(images.values()), None)
        if normalize is None or image is None or image.device.type != "cpu":
            return None
        return remark_on_range(image, normalize.full_scale)


def _normalize_of(transform: Callable[..., torch.Tensor] | None) -> Normalize | None:
    """The normalisation that the loader's own values meet, if nothing but a flip comes before it."""
    transforms = transform.transforms if isinstance(transform, Compose) else [transform]
    first = next((each for each in transforms if not isinstance(each, RandomHorizontalFlip)), None)
    return first if isinstance(first, Normalize) else None
