"""Crops at random places or at the centre, with or without a resize."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from numbers import Integral
from typing import Any

import numpy as np
import torch

from fastload.arguments import antialiased, flag, integer, interpolation_name, interval, quoted, sides
from fastload.transforms.fill import Fill, FillArgument
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.sampling import ATTEMPTS, SMALLEST_RATIO, corners, draw_sides, first_accepted
from fastload.transforms.transform import Transform

__all__ = ["CenterCrop", "RandomCrop", "RandomResizedCrop"]


class RandomResizedCrop(Transform):
    """Crop a random box of each image and resize it to ``size``.

    >>> RandomResizedCrop(224)(torch.zeros(2, 3, 375, 500, dtype=torch.uint8)).shape
    torch.Size([2, 3, 224, 224])

    The formula is torchvision's. Ten boxes are drawn, with area uniform over ``scale`` and ratio log-uniform over
    ``ratio``. The first that fits is put at a random place in the image. If none fits, the box is the largest at the
    centre whose ratio is within ``ratio``. Images are uint8 or floating-point, and may have different sizes.

    Args:
        size: (height, width) of the result, or an int for a square.
        scale: least and greatest area of the box, as a share of the image's.
        ratio: least and greatest ratio of width to height, before resizing.
        interpolation: "bilinear" or "bicubic", both antialiased, or "nearest". Bicubic goes beyond the values of an
            image; those of bytes are clipped after each axis, rows first, as in torchvision.
        antialias: True or None, for calls written for torchvision.

    Raises:
        TypeError: ``size`` is no int or pair of them, or ``scale`` or ``ratio`` is not a pair.
        ValueError: ``size`` is not positive, ``scale`` or ``ratio`` is out of order or negative, or ``interpolation``
            is not one of the three.
    """

    resizes = True
    uniform_count = 2 * ATTEMPTS + 2

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: Any = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        antialiased(antialias)
        self.size = sides("size", size)
        self.scale = interval("scale", scale, 0, inf)
        self.ratio = interval("ratio", ratio, SMALLEST_RATIO, inf)
        self.interpolation = interpolation_name(interpolation, ("bilinear", "bicubic", "nearest"))

    def __repr__(self) -> str:
        return f"RandomResizedCrop({self.size}, {self.scale}, {self.ratio}, {self.interpolation!r})"

    def sample(self, sizes: torch.Tensor, key: Key) -> torch.Tensor:
        """Boxes, int32 (N, 4): top, left, height, width."""
        numbers, whole = key.numbers(len(sizes), self.uniform_count).T, sizes.numpy().T
        sides = draw_sides(whole, numbers[:-2], self.scale, self.ratio)
        fits = (sides > 0) & (sides <= whole[::-1, None])
        side, found = first_accepted(fits[0] & fits[1], sides)
        size = side[::-1]  # width and height were drawn
        start = corners(numbers[-2:], whole - size)
        if not found.all():
            size = np.where(found, size, self._largest(whole))
            start = np.where(found, start, (whole - size) // 2)
        return torch.from_numpy(np.concatenate([start, size]).astype(np.int32).T)

    def _largest(self, sizes: np.ndarray) -> np.ndarray:
        """Height and width of the largest box in each image whose ratio is allowed, (2, N)."""
        height, width = sizes
        narrow, wide = self.ratio
        size = [np.minimum(height, np.rint(width / narrow)), np.minimum(width, np.rint(height * wide))]
        return np.maximum(np.stack(size).astype(np.int64), 1)

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        work.crop_resize(parameters, self.size, self.interpolation)


class RandomCrop(Transform):
    """Pad each image, and crop a box of ``size`` at a random place.

    >>> RandomCrop(32, padding=4)(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([2, 3, 32, 32])

    Images are uint8 or floating-point, and may have different sizes.

    Args:
        size: (height, width), or an int for a square.
        padding: pixels on every side; or two numbers: left and right, top and bottom; or four: left, top, right,
            bottom.
        pad_if_needed: where a padded image is still smaller than ``size``, pad both sides by the pixels it lacks.
        fill: the value of the padding, in units of the images' values, in masks too; or by type, as torchvision's:
            ``{tv_tensors.Mask: 255, "others": 0}``.
        padding_mode: "constant"; no other mode is supported.

    Raises:
        TypeError: ``fill`` is no number, and has none by type.
        ValueError: ``size`` is not positive, ``padding`` is negative or not 1, 2 or 4 numbers, ``fill`` differs from
            channel to channel, or ``padding_mode`` is not "constant"; when called, a padded image is smaller than
            ``size``.
    """

    resizes = True

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: FillArgument = 0,
        padding_mode: str = "constant",
    ) -> None:
        if padding_mode != "constant":
            raise ValueError(f"padding_mode must be 'constant'; got {quoted(padding_mode)}")
        self.size = sides("size", size)
        self.padding = _borders(padding)
        self.pad_if_needed = flag("pad_if_needed", pad_if_needed)
        self.fill = Fill.of(fill)

    def __repr__(self) -> str:
        options = f", pad_if_needed={self.pad_if_needed}, fill={self.fill}"
        return f"RandomCrop({self.size}, padding={self.padding}{options})"

    def sample(self, sizes: torch.Tensor, key: Key) -> torch.Tensor:
        """Boxes, int32 (N, 4): top, left, height, width, in the image before padding."""
        left, top, right, bottom = self.padding
        before = np.array([top, left])
        padded = sizes.numpy() + before + (bottom, right)
        missing = np.maximum(np.subtract(self.size, padded), 0)
        if self.pad_if_needed:
            before = before + missing
            padded = padded + 2 * missing
        elif missing.any():
            small = int(missing.any(1).argmax())
            raise ValueError(
                f"a crop of {self.size} must fit into the padded image; image {small} is "
                f"{tuple(padded[small].tolist())} with its padding: pass pad_if_needed=True, or resize it first"
            )
        start = corners(key.numbers(len(sizes), 2), padded - self.size) - before
        return _boxes(start, self.size)

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        work.crop(parameters, self.fill)


class CenterCrop(Transform):
    """Crop a box of ``size`` at the centre of each image; pixels outside of the image are 0.

    >>> CenterCrop(224)(torch.zeros(2, 3, 256, 341, dtype=torch.uint8)).shape
    torch.Size([2, 3, 224, 224])

    Images are uint8 or floating-point, and may have different sizes. Where image and box differ by an odd number of
    pixels, the box is placed as torchvision places it.

    Raises:
        ValueError: ``size``, (height, width) or an int for a square, is not positive.
    """

    resizes = True

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = sides("size", size)

    def __repr__(self) -> str:
        return f"CenterCrop({self.size})"

    def sample(self, sizes: torch.Tensor, key: Key) -> torch.Tensor:  # noqa: ARG002  (there is nothing to draw)
        """Boxes, int32 (N, 4): top, left, height, width."""
        spare = sizes.numpy() - self.size
        return _boxes(np.where(spare < 0, -(-spare // 2), np.rint(spare / 2)), self.size)

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        work.crop(parameters)


def _boxes(start: np.ndarray, size: tuple[int, int]) -> torch.Tensor:
    """Boxes of one size, int32 (N, 4), that start at (top, left), (N, 2)."""
    boxes = np.empty((len(start), 4), dtype=np.int32)
    boxes[:, :2] = start
    boxes[:, 2:] = size
    return torch.from_numpy(boxes)


def _borders(padding: int | Sequence[int] | None) -> tuple[int, int, int, int]:
    """The padding in torchvision's order: left, top, right, bottom."""
    given = [0] if padding is None else [padding] if isinstance(padding, Integral) else padding
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or len(given) not in (1, 2, 4):
        raise TypeError(f"padding must be an int, or 2 or 4 of them; got {quoted(padding)}")
    left, top, right, bottom = [integer("padding", side, least=0) for side in given] * (4 // len(given))
    return left, top, right, bottom
