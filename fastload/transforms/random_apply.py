"""Transforms that each image undergoes, or does not, by chance."""

from __future__ import annotations

import torch

from fastload.transforms.arguments import probability
from fastload.transforms.key import Key
from fastload.transforms.transform import Transform

__all__ = ["Chance"]


class Chance(Transform):
    """A transform of each image with probability ``p``, and nothing else to draw.

    Raises:
        ValueError: ``p`` is not in [0, 1].
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = probability(p)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(p={self.p})"

    def sample(self, sizes: torch.Tensor, key: Key) -> torch.Tensor:
        """Which images undergo it, bool (N,)."""
        return torch.from_numpy(key.uniform(len(sizes)).numpy() < self.p)
