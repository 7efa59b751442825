"""Mirror images."""

from __future__ import annotations

import torch

from fastload.transforms.lazy import LazyImages
from fastload.transforms.random_apply import Chance

__all__ = ["RandomHorizontalFlip", "RandomVerticalFlip"]


class RandomHorizontalFlip(Chance):
    """Mirror each image left to right with probability ``p``.

    >>> RandomHorizontalFlip(p=1.0)(torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8))
    tensor([[[[3, 2, 1]]]], dtype=torch.uint8)

    Images of any dtype and size.

    Raises:
        ValueError: ``p`` is not in [0, 1].
    """

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        work.flip(horizontal=parameters)


class RandomVerticalFlip(Chance):
    """Mirror each image top to bottom with probability ``p``.

    >>> RandomVerticalFlip(p=1.0)(torch.tensor([[[[1.0], [2.0]]]]))
    tensor([[[[2.],
              [1.]]]])

    Images are uint8 or floating-point, of any size.

    Raises:
        ValueError: ``p`` is not in [0, 1].
    """

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        work.flip(vertical=parameters)
