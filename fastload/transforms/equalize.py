"""Equalise the histograms of images."""

from __future__ import annotations

import torch

from fastload.transforms.lazy import LazyImages
from fastload.transforms.random_apply import Chance

__all__ = ["RandomEqualize"]


class RandomEqualize(Chance):
    """Spread the values of each image's channels over the whole scale, each as often, with probability ``p``.

    >>> RandomEqualize(p=1.0)(torch.full((1, 3, 4, 4), 7, dtype=torch.uint8)).unique()
    tensor([7], dtype=torch.uint8)

    Images of one size, uint8, or floating-point from 0 to 1, which go through uint8. Torchvision's formula, Pillow's.

    Raises:
        ValueError: ``p`` is not in [0, 1].
    """

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        work.equalize(parameters)
