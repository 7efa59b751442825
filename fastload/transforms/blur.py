"""Random Gaussian blur."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from numbers import Real

import numpy as np
import torch

from fastload.arguments import interval, probability, quoted, sides
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.sampling import between
from fastload.transforms.transform import Transform

__all__ = ["GaussianBlur", "kernel_side", "sigma_range"]

SMALLEST_SIGMA = 1e-3  # pixels; below, sigma**2 loses its meaning in float32, and a blur changes nothing


class GaussianBlur(Transform):
    """Blur each image with probability ``p``, with a Gaussian whose standard deviation is uniform over ``sigma``.

    >>> GaussianBlur(kernel_size=3)(torch.full((2, 3, 4, 4), 7, dtype=torch.uint8)).unique()
    tensor([7], dtype=torch.uint8)

    Images have one size and are uint8, or floating-point from 0 to 1. The formula is torchvision's; at the edges the
    image is continued by its mirror image.

    Args:
        kernel_size: side of the square kernel in pixels, an odd number.
        sigma: least and greatest standard deviation in pixels, or one number.
        p: probability that an image is blurred.

    Raises:
        ValueError: ``kernel_size`` is even or differs between the sides, ``sigma`` is below 0.001 or out of order, or
            ``p`` is not in [0, 1].
    """

    def __init__(
        self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0), p: float = 1.0
    ) -> None:
        self.kernel_size = kernel_side(kernel_size)
        self.sigma = sigma_range(sigma)
        self.p = probability(p)

    def __repr__(self) -> str:
        return f"GaussianBlur({self.kernel_size}, {self.sigma}, p={self.p})"

    def sample(self, sizes: torch.Tensor, key: Key) -> torch.Tensor:
        """Standard deviations in pixels, float32 (N,); 0 for images that are not blurred."""
        numbers = key.numbers(len(sizes), 2)
        sigmas = between(numbers[:, 0], *self.sigma) * (numbers[:, 1] < self.p)
        return torch.from_numpy(sigmas.astype(np.float32))

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        work.blur(parameters, self.kernel_size)


def kernel_side(kernel_size: int | Sequence[int]) -> int:
    height, width = sides("kernel_size", kernel_size)
    if height != width or height % 2 == 0:
        raise ValueError(f"kernel_size must be an odd int, the same along both sides; got {quoted(kernel_size)}")
    return height


def sigma_range(sigma: float | Sequence[float]) -> tuple[float, float]:
    return interval("sigma", (sigma, sigma) if isinstance(sigma, Real) else sigma, SMALLEST_SIGMA, inf)
