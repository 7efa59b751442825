"""Blur images."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch

from fastload.transforms.arguments import interval, probability, sides
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.sampling import between
from fastload.transforms.transform import Transform

__all__ = ["GaussianBlur", "kernel_side", "sigma_range"]

NARROWEST = 1e-3  # pixels; below, exp(-x**2 / 2 sigma**2) has no meaning in float32, and the image stays as it is


class GaussianBlur(Transform):
    """Blur each image with probability ``p``, by a Gaussian whose sigma is uniform over ``sigma``.

    >>> GaussianBlur(kernel_size=3)(torch.full((2, 3, 4, 4), 7, dtype=torch.uint8)).unique()
    tensor([7], dtype=torch.uint8)

    Images of one size, uint8, or floating-point from 0 to 1, mirrored at their edges. Torchvision's formula.

    Args:
        kernel_size: odd number of pixels, along either side, over which is averaged.
        sigma: least and greatest standard deviation in pixels, or one number.
        p: probability of an image to be blurred.

    Raises:
        ValueError: ``kernel_size`` is even or not the same along both sides, ``sigma`` is not positive or out of order,
            or ``p`` is not in [0, 1].
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
        """Standard deviations, float32 (N,); 0 for images that stay as they are."""
        numbers = key.uniform(len(sizes), 2)
        return (between(numbers[:, 0], *self.sigma) * (numbers[:, 1] < self.p)).float()

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        work.blur(parameters, self.kernel_size)


def kernel_side(kernel_size: int | Sequence[int]) -> int:
    height, width = sides("kernel_size", kernel_size)
    if height != width or height % 2 == 0:
        raise ValueError(f"kernel_size must be an odd int, the same along both sides; got {kernel_size!r}")
    return height


def sigma_range(sigma: float | Sequence[float]) -> tuple[float, float]:
    return interval("sigma", (sigma, sigma) if isinstance(sigma, int | float) else sigma, NARROWEST, inf)
