"""Random mirroring of images, left to right and top to bottom."""

from __future__ import annotations

import torch

from fastload.transforms.lazy import LazyImages
from fastload.transforms.with_probability import WithProbability

__all__ = ["RandomHorizontalFlip", "RandomVerticalFlip"]


class RandomHorizontalFlip(WithProbability):
    """Mirror each image left to right with probability ``p``.

    >>> RandomHorizontalFlip(p=1.0)(torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8))
    tensor([[[[3, 2, 1]]]], dtype=torch.uint8)

    A batch may have any dtype. Images of different sizes are uint8, float16, bfloat16 or float32.

    Raises:
        ValueError: ``p`` is not in [0, 1].
    """

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        work.flip(horizontal=parameters)


class RandomVerticalFlip(WithProbability):
    """Mirror each image top to bottom with probability ``p``.

    >>> RandomVerticalFlip(p=1.0)(torch.tensor([[[[1.0], [2.0]]]]))
    tensor([[[[2.],
              [1.]]]])

    Images are uint8 or floating-point, and may have different sizes.

    Raises:
        ValueError: ``p`` is not in [0, 1].
    """

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        work.flip(vertical=parameters)
