"""Several transforms, in as few passes over memory as they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fastload.transforms.flip import RandomHorizontalFlip
from fastload.transforms.key import Key
from fastload.transforms.normalize import Normalize
from fastload.transforms.transform import Transform

__all__ = ["Compose"]


class Compose(Transform):
    """Apply transforms one after another.

    >>> images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    >>> Compose([RandomHorizontalFlip(), Normalize([0.5] * 3, [0.5] * 3)])(images).unique()
    tensor([-1.])

    Beside the transforms of this package, any callable that takes and returns a batch of images can stand in the
    list. A ``RandomHorizontalFlip`` directly before a ``Normalize`` is done by the same kernel.

    Raises:
        TypeError: an element is not callable.
    """

    def __init__(self, transforms: Sequence[Callable[..., torch.Tensor]]) -> None:
        self.transforms = list(_flattened(transforms))
        self._passes = list(_fused(self.transforms))

    @property
    def moves_pixels(self) -> bool:  # type: ignore[override]
        return any(getattr(transform, "moves_pixels", False) for transform in self.transforms)

    def __repr__(self) -> str:
        return f"Compose({self.transforms})"

    def sample(self, samples: int, key: Key) -> list[Any]:
        """The parameters of each transform; None for a callable that draws its own."""
        return [
            transform.sample(samples, key.for_draw(draw)) if isinstance(transform, Transform) else None
            for draw, transform in enumerate(self.transforms)
        ]

    def apply(self, images: torch.Tensor, parameters: list[Any]) -> torch.Tensor:
        for transform, drawn in self._passes:
            if isinstance(transform, Transform):
                images = transform.apply(images, parameters[drawn])
            else:
                images = transform(images)
        return images


def _fused(transforms: list[Callable[..., torch.Tensor]]) -> Iterator[tuple[Callable[..., torch.Tensor], int]]:
    """The passes over memory: what to apply, and whose parameters with it."""
    for index, transform in enumerate(transforms):
        before = transforms[index - 1] if index else None
        after = transforms[index + 1] if index + 1 < len(transforms) else None
        if isinstance(transform, Normalize) and isinstance(before, RandomHorizontalFlip):
            yield transform, index - 1
        elif not (isinstance(transform, RandomHorizontalFlip) and isinstance(after, Normalize)):
            yield transform, index


def _flattened(transforms: Sequence[Callable[..., torch.Tensor]]) -> Iterator[Callable[..., torch.Tensor]]:
    for transform in transforms:
        if isinstance(transform, Compose):
            yield from transform.transforms
        elif callable(transform):
            yield transform
        else:
            raise TypeError(f"a transform must be callable on a batch of images; got {transform!r}")
