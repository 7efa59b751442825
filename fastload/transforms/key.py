"""Random numbers that depend on a sample's place and on nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

__all__ = ["Key"]

_WORDS = 4  # 64-bit words that Philox yields for each value of its counter
_SAMPLES, _BATCH = 0, 1  # whose the numbers are


@dataclass(frozen=True)
class Key:
    """What the randomness of one batch depends on.

    >>> whole = Key(seed=0, epoch=3).uniform(4)
    >>> torch.equal(whole[2:], Key(seed=0, epoch=3, place=2).uniform(2))
    True

    ``place`` is that of the batch's first sample in the epoch, so the numbers do not depend on how the epoch is cut
    into batches; its next sample is ``stride`` places further, as many as there are ranks that share the epoch.
    ``draw`` tells apart the transforms that draw for the same sample.

    The generator is Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), NumPy's,
    with the key (seed, epoch) and the counter (place * blocks + block, draw): a block is four numbers, and a sample
    has as many as it needs, one behind the other, so that those of a batch are drawn in one go.
    """

    seed: int = 0
    epoch: int = 0
    place: int = 0
    draw: int = 0
    stride: int = 1

    @classmethod
    def fresh(cls) -> Key:
        """A key from torch's global generator, for a transform that is called by hand."""
        return cls(seed=int(torch.randint(2**63 - 1, ())))

    def for_draw(self, draw: int) -> Key:
        return replace(self, draw=draw)

    def advanced(self, samples: int) -> Key:
        return replace(self, place=self.place + samples * self.stride)

    def uniform(self, samples: int, count: int = 1) -> torch.Tensor:
        """``count`` numbers in [0, 1) for each sample, float64 (samples, count), on the CPU; (samples,) for one."""
        numbers = torch.from_numpy((self._words(samples, count) >> np.uint64(11)) * 2.0**-53)
        return numbers[:, 0] if count == 1 else numbers

    def integers(self, samples: int) -> torch.Tensor:
        """One number for each sample, int64, uniform over 0 to 2**63 - 1: a seed for what the device draws."""
        return torch.from_numpy((self._words(samples, 1)[:, 0] >> np.uint64(1)).astype(np.int64))

    def generator(self) -> np.random.Generator:
        """NumPy's generator for what is drawn once a batch; it depends on the batch's first sample."""
        return np.random.Generator(self._philox(self.place, _BATCH))

    def _words(self, samples: int, count: int) -> np.ndarray:
        """``count`` words for each sample, uint64 (samples, count)."""
        places = max(samples - 1, 0) * self.stride + 1
        blocks = -(-count // _WORDS)
        every = self._philox(self.place * blocks, _SAMPLES).random_raw(places * blocks * _WORDS)
        words: np.ndarray = every.reshape(places, -1)[:: self.stride][:samples, :count]
        return words

    def _philox(self, first: int, whose: int) -> np.random.Philox:
        key, counter = (
            np.array([number % 2**64 for number in numbers], dtype=np.uint64)
            for numbers in ((self.seed, self.epoch), (first, self.draw, whose, 0))
        )
        return np.random.Philox(key=key, counter=counter)
