"""Random erasing: overwrite a box of each image."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from numbers import Real

import numpy as np
import torch

from fastload.arguments import interval, not_in_place, number, numbers, probability, quoted
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.sampling import ATTEMPTS, SMALLEST_RATIO, corners, draw_sides, first_accepted
from fastload.transforms.transform import Transform

__all__ = ["Erasure", "RandomErasing"]


@dataclass(frozen=True)
class Erasure:
    """The parameters of RandomErasing for a batch.

    Attributes:
        boxes: top, left, height, width, int32 (N, 4); all 0 for an image that is not erased.
        seeds: seeds of the noise in the boxes, int64 (N,); 0 where there is no noise.
    """

    boxes: torch.Tensor
    seeds: torch.Tensor


class RandomErasing(Transform):
    """Overwrite a random box of each image with probability ``p``.

    >>> images = torch.ones(1, 3, 32, 32)
    >>> RandomErasing(p=1.0, value=5.0)(images).unique()
    tensor([1., 5.])

    The formula is torchvision's. Ten boxes are drawn, with area uniform over ``scale`` and ratio log-uniform over
    ``ratio``. The first that is smaller than the image along both sides is put at a random place. If there is none, the
    image stays as it is. Random Erasing Data Augmentation, Zhong et al., 2017.

    Args:
        p: probability that an image is erased.
        scale: least and greatest area of the box, as a share of the image's.
        ratio: least and greatest ratio of height to width.
        value: a number, one number for each channel, or "random" for standard normal noise. It is in units of the
            values at this point: of normalised values after ``Normalize``.
        inplace: False, for calls written for torchvision.

    Raises:
        TypeError: ``scale`` or ``ratio`` is not a pair.
        ValueError: ``p`` or ``scale`` is not in [0, 1], ``ratio`` is not positive or out of order, or ``value`` is a
            string other than "random".
    """

    uniform_count = 2 * ATTEMPTS + 3

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | str = 0.0,
        inplace: bool = False,
    ) -> None:
        not_in_place(inplace)
        self.p = probability(p)
        self.scale = interval("scale", scale, 0, 1)
        self.ratio = interval("ratio", ratio, SMALLEST_RATIO, inf)
        self.value = _value(value)

    def __repr__(self) -> str:
        return f"RandomErasing({self.p}, {self.scale}, {self.ratio}, {self.value!r})"

    def sample(self, sizes: torch.Tensor, key: Key) -> Erasure:
        numbers = key.numbers(len(sizes), self.uniform_count).T
        chosen = np.flatnonzero(numbers[-1] < self.p)
        boxes = np.zeros((len(sizes), 4), dtype=np.int32)
        boxes[chosen] = self._boxes(sizes.numpy().T.take(chosen, axis=1), numbers.take(chosen, axis=1)).T
        is_noise = isinstance(self.value, str)
        seeds = key.integers(len(sizes)) if is_noise else torch.from_numpy(np.zeros(len(sizes), dtype=np.int64))
        return Erasure(torch.from_numpy(boxes), seeds)

    def _boxes(self, whole: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """A box in each image of these heights and widths, int64 (4, N); all 0 where none fits."""
        sides = draw_sides(whole, numbers[: 2 * ATTEMPTS], self.scale, self.ratio)
        smaller = sides < whole[:, None]
        size, found = first_accepted(smaller[0] & smaller[1], sides)
        start = corners(numbers[-3:-1], whole - size)
        boxes: np.ndarray = np.concatenate([start, size]) * (found & (size > 0).all(0))
        return boxes

    def record(self, work: LazyImages, parameters: Erasure) -> None:
        noise, value = ((1.0,), (0.0,)) if isinstance(self.value, str) else ((0.0,), self.value)
        if isinstance(self.value, str) and work.are_bytes:
            warnings.warn(
                "RandomErasing(value='random') writes standard normal noise, which is almost black in uint8 images: "
                "put it behind Normalize",
                stacklevel=2,
            )
        work.erase(parameters.boxes, parameters.seeds, noise, value)


def _value(value: float | Sequence[float] | str) -> tuple[float, ...] | str:
    if isinstance(value, str):
        if value != "random":
            raise ValueError(f"value must be a number, one for each channel, or 'random'; got {quoted(value)}")
        return value
    return (number("value", value),) if isinstance(value, Real) else tuple(numbers("value", value))
