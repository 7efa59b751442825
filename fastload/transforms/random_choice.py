"""``RandomChoice``: one of several transforms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fastload.arguments import numbers
from fastload.transforms.container import Choice, Container
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.transform import Transform

__all__ = ["RandomChoice"]


class RandomChoice(Container):
    """Apply one of several transforms to each image, drawn for each.

    >>> from fastload.transforms import RandomInvert, RandomSolarize
    >>> RandomChoice([RandomInvert(1.0), RandomSolarize(0.0, 1.0)])(torch.ones(4, 3, 2, 2)).unique()
    tensor([0.])

    Args:
        transforms: of ``fastload.transforms``; a ``Compose`` is one of them.
        p: the weight of each; by default all are as likely. Weights need not add up to 1.

    Raises:
        TypeError: ``transforms`` is no list of transforms of ``fastload.transforms``, or one of them takes the batch as
            a whole, as ``Normalize`` does; or ``p`` is no sequence of numbers.
        ValueError: the list is empty, or ``p`` has not one number for each, at least 0 and not all 0.
    """

    def __init__(self, transforms: Sequence[Transform], p: Sequence[float] | None = None) -> None:
        super().__init__(transforms)
        weights = [1.0] * len(self.transforms) if p is None else numbers("p", p)
        if len(weights) != len(self.transforms) or min(weights) < 0 or not 0 < sum(weights) < np.inf:
            raise ValueError(f"p must have a weight for each of {len(self.transforms)} transforms, not all 0; got {p}")
        self.p = [weight / sum(weights) for weight in weights]

    def __repr__(self) -> str:
        return f"RandomChoice({self.transforms}, p={self.p})"

    def sample(self, sizes: torch.Tensor, key: Key) -> Choice:
        """The index of each image's transform, int64 (N,)."""
        drawn = np.searchsorted(np.cumsum(self.p)[:-1], key.numbers(len(sizes)), side="right")
        return Choice(drawn, key)

    def record(self, work: LazyImages, parameters: Choice) -> None:
        for index, (transform, key) in enumerate(self._members(parameters.key)):
            self._apply(work, transform, key, parameters.drawn == index)
