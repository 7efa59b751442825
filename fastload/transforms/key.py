"""Random numbers that depend on a sample's place and on nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

__all__ = ["Key"]

_WORDS = 4  # 64-bit words that Philox yields for each value of its counter


@dataclass(frozen=True)
class Key:
    """What the randomness of one batch depends on.

    >>> whole = Key(seed=0, epoch=3).uniform(4)
    >>> torch.equal(whole[2:], Key(seed=0, epoch=3, place=2).uniform(2))
    True

    ``place`` is that of the batch's first sample in the epoch, so the numbers do not depend on how the epoch is cut
    into batches. ``draw`` tells apart the transforms that draw for the same sample.

    The generator is Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), NumPy's,
    with the key (seed, epoch) and the counter (place, draw).
    """

    seed: int = 0
    epoch: int = 0
    place: int = 0
    draw: int = 0

    @classmethod
    def fresh(cls) -> Key:
        """A key from torch's global generator, for a transform that is called by hand."""
        return cls(seed=int(torch.randint(2**63 - 1, ())))

    def for_draw(self, draw: int) -> Key:
        return replace(self, draw=draw)

    def advanced(self, samples: int) -> Key:
        return replace(self, place=self.place + samples)

    def uniform(self, samples: int) -> torch.Tensor:
        """``samples`` numbers in [0, 1), float64, on the CPU."""
        key, counter = (
            np.array([number % 2**64 for number in numbers], dtype=np.uint64)
            for numbers in ((self.seed, self.epoch), (self.place, self.draw, 0, 0))
        )
        generator = np.random.Philox(key=key, counter=counter)
        words = generator.random_raw(_WORDS * samples)[::_WORDS]
        return torch.from_numpy((words >> 11) * 2.0**-53)
