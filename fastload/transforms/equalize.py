"""Random histogram equalisation of images."""

from __future__ import annotations

import torch

from fastload.transforms.lazy import LazyImages
from fastload.transforms.with_probability import WithProbability

__all__ = ["RandomEqualize"]


class RandomEqualize(WithProbability):
    """Equalise the histogram of each channel of an image, with probability ``p``.

    >>> RandomEqualize(p=1.0)(torch.full((1, 3, 4, 4), 7, dtype=torch.uint8)).unique()
    tensor([7], dtype=torch.uint8)

    Images have one size and are uint8, or floating-point from 0 to 1, which are equalised as uint8. The formula is that
    of torchvision and Pillow.

    Raises:
        ValueError: ``p`` is not in [0, 1].
    """

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        work.equalize(parameters)
