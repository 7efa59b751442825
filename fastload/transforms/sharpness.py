"""Random sharpening or smoothing of images."""

from __future__ import annotations

import torch

from fastload.arguments import number
from fastload.transforms.lazy import LazyImages
from fastload.transforms.with_probability import WithProbability

__all__ = ["RandomAdjustSharpness"]


class RandomAdjustSharpness(WithProbability):
    """Change the sharpness of each image with probability ``p``.

    >>> RandomAdjustSharpness(2, p=1.0)(torch.full((1, 3, 4, 4), 7, dtype=torch.uint8)).unique()
    tensor([7], dtype=torch.uint8)

    Images have one size and are uint8, or floating-point from 0 to 1. The formula is torchvision's: a blend of the
    image with a smoothed copy, or an extrapolation away from the copy.

    Args:
        sharpness_factor: 0 gives the smoothed image, 1 the original, 2 one that is twice as sharp.
        p: probability that an image is changed.

    Raises:
        ValueError: ``sharpness_factor`` is negative, or ``p`` is not in [0, 1].
    """

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.sharpness_factor = number("sharpness_factor", sharpness_factor, least=0)

    def __repr__(self) -> str:
        return f"RandomAdjustSharpness({self.sharpness_factor}, p={self.p})"

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        work.sharpen(torch.where(parameters, self.sharpness_factor, 1.0))
