"""``RandomOrder``: several transforms in a random order."""

from __future__ import annotations

import torch

from fastload.transforms.container import Choice, Container
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages

__all__ = ["RandomOrder"]


class RandomOrder(Container):
    """Apply all of several transforms, in an order drawn for each image.

    >>> from fastload.transforms import Key, RandomInvert, RandomSolarize
    >>> RandomOrder([RandomInvert(1.0), RandomSolarize(0.5, 1.0)])(torch.ones(8, 3, 2, 2), Key(seed=0)).unique()
    tensor([0., 1.])

    Orders are as likely. Of k transforms, k times k are recorded, each for the images that have it at that place: so
    those that need a pass over memory of their own, such as blur, are slow here.

    Args:
        transforms: of ``fastload.transforms``; a ``Compose`` is one of them.

    Raises:
        TypeError: ``transforms`` is no list of transforms of ``fastload.transforms``, or one of them takes the batch as
            a whole, as ``Normalize`` does.
        ValueError: the list is empty.
    """

    def __repr__(self) -> str:
        return f"RandomOrder({self.transforms})"

    def sample(self, sizes: torch.Tensor, key: Key) -> Choice:
        """Indices of each image's transforms in order, int64 (N, k)."""
        count = len(self.transforms)
        return Choice(key.numbers(len(sizes), max(2, count))[:, :count].argsort(axis=1), key)

    def record(self, work: LazyImages, parameters: Choice) -> None:
        members = list(self._members(parameters.key))
        for place in range(len(members)):
            for index, (transform, key) in enumerate(members):
                self._apply(work, transform, key, parameters.drawn[:, place] == index)
