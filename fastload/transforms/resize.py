"""``Resize``: to a height and width, or by the length of a side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fastload.arguments import antialiased, integer, interpolation_name, sides
from fastload.transforms.geometry import rows_of
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages, one_size
from fastload.transforms.transform import Transform

__all__ = ["Resize"]


class Resize(Transform):
    """Resize each image to a height and width, or its shorter side to ``size``, keeping its ratio.

    >>> Resize(256)(torch.zeros(2, 3, 375, 500, dtype=torch.uint8)).shape
    torch.Size([2, 3, 256, 341])

    Images are uint8 or floating-point, and may have different sizes. If a crop follows, only the pixels in the crop are
    computed.

    Args:
        size: (height, width); or an int, the length of the shorter side; or None, if ``max_size`` is given.
        interpolation: "bilinear" or "bicubic", both antialiased, or "nearest". Bicubic goes beyond the values of an
            image; those of bytes are clipped after each axis, rows first, as in torchvision.
        max_size: the greatest length of the longer side, if ``size`` is an int: where it would be exceeded, the image
            is made smaller. If ``size`` is None, the length of the longer side.
        antialias: True or None, for calls written for torchvision.

    Raises:
        TypeError: ``size`` is no int or pair of them, or ``max_size`` no int.
        ValueError: ``size`` or ``max_size`` is not positive; ``max_size`` is not above an int ``size``, or is given
            with (height, width); both are None; or ``interpolation`` is not one of the three.
    """

    resizes = True

    def __init__(
        self,
        size: int | Sequence[int] | None,
        interpolation: Any = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        antialiased(antialias)
        self.size = _side_or_sides(size)
        self.interpolation = interpolation_name(interpolation, ("bilinear", "bicubic", "nearest"))
        max_size = None if max_size is None else integer("max_size", max_size, least=1)
        if isinstance(self.size, tuple) and max_size is not None:
            raise ValueError(f"max_size must be None where size is (height, width); got {max_size} and {self.size}")
        if self.size is None and max_size is None:
            raise ValueError("max_size must be an int where size is None; got None")
        if isinstance(self.size, int) and max_size is not None and max_size <= self.size:
            raise ValueError(f"max_size must be above size, {self.size}; got {max_size}")
        self.max_size = max_size

    def __repr__(self) -> str:
        longest = "" if self.max_size is None else f", max_size={self.max_size}"
        return f"Resize({self.size}, {self.interpolation!r}{longest})"

    def sample(self, sizes: torch.Tensor, key: Key) -> torch.Tensor:  # noqa: ARG002  (there is nothing to draw)
        """New height and width of each image, int64 (N, 2)."""
        if isinstance(self.size, tuple):
            return rows_of(self.size, len(sizes))
        # Torchvision's formula, with its order of operations: quotients are rounded down, so their last bit matters.
        sides = sizes.numpy().T
        short, long = sides.min(0).astype(np.float64), sides.max(0).astype(np.float64)
        if self.size is None:
            new_long = np.full_like(long, self.max_size or 0)
            new_short = np.floor(new_long * short / long)
        else:
            new_short = np.full_like(short, self.size)
            new_long = np.floor(new_short * long / short)
            if self.max_size is not None:
                over = new_long > self.max_size
                new_short = np.where(over, np.floor(self.max_size * new_short / new_long), new_short)
                new_long = np.minimum(new_long, self.max_size)
        tall = sides[0] >= sides[1]
        resized = [np.where(tall, new_long, new_short), np.where(tall, new_short, new_long)]
        return torch.from_numpy(np.maximum(np.stack(resized, axis=1), 1).astype(np.int64))

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        boxes = np.zeros((len(parameters), 4), dtype=np.int32)
        boxes[:, 2:] = work.sizes.numpy()
        work.crop_resize(torch.from_numpy(boxes), one_size(parameters), self.interpolation, clips=False)


def _side_or_sides(size: int | Sequence[int] | None) -> int | tuple[int, int] | None:
    if size is None:
        return None
    height, width = sides("size", size)
    return (height, width) if isinstance(size, Sequence) and len(size) > 1 else height
