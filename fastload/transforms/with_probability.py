"""``WithProbability``: base of transforms that are applied to each image with probability ``p``."""

from __future__ import annotations

import torch

from fastload.arguments import probability
from fastload.transforms.key import Key
from fastload.transforms.transform import Transform

__all__ = ["WithProbability"]


class WithProbability(Transform):
    """A transform that is applied to each image with probability ``p`` and has no other random parameter.

    A subclass implements :meth:`record`, which gets bool (N,): the images to transform.

    Raises:
        ValueError: ``p`` is not in [0, 1].
    """

    uniform_count = 1

    def __init__(self, p: float = 0.5) -> None:
        self.p = probability(p)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p={self.p})"

    def sample(self, sizes: torch.Tensor, key: Key) -> torch.Tensor:
        """Which images to transform, bool (N,), on the CPU."""
        return torch.from_numpy(key.numbers(len(sizes)) < self.p)
