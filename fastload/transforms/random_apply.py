"""``RandomApply``: transforms with a probability."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastload.arguments import probability
from fastload.transforms.container import Choice, Container
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.transform import Transform

__all__ = ["RandomApply"]


class RandomApply(Container):
    """Apply transforms one after another, all of them or none, with probability ``p`` for each image.

    >>> from fastload.transforms import ColorJitter
    >>> RandomApply([ColorJitter(brightness=(0.5, 0.5))], p=1.0)(torch.ones(1, 3, 2, 2)).unique()
    tensor([0.5000])

    The transforms share passes over memory with those before and after. In torchvision, ``RandomApply`` of a batch
    draws once for all its images.

    Args:
        transforms: of ``fastload.transforms``, in order; a ``Compose`` too.
        p: probability that an image is transformed.

    Raises:
        TypeError: ``transforms`` is no list of transforms of ``fastload.transforms``, or one of them takes the batch as
            a whole, as ``Normalize`` does.
        ValueError: the list is empty, or ``p`` is not in [0, 1].
    """

    def __init__(self, transforms: Sequence[Transform], p: float = 0.5) -> None:
        super().__init__(transforms)
        self.p = probability(p)

    def __repr__(self) -> str:
        return f"RandomApply({self.transforms}, p={self.p})"

    def sample(self, sizes: torch.Tensor, key: Key) -> Choice:
        """Which images to transform, bool (N,)."""
        return Choice(key.numbers(len(sizes)) < self.p, key)

    def record(self, work: LazyImages, parameters: Choice) -> None:
        for transform, key in self._members(parameters.key):
            self._apply(work, transform, key, parameters.drawn)
