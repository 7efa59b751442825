"""``Key``: random numbers that depend on a sample's place in the epoch, and not on batches or workers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

__all__ = ["Key"]

_WORDS = 4  # 64-bit words that Philox yields for each value of its counter
_SAMPLES, _BATCH = 0, 1  # streams of numbers: for each sample, and once for the batch


@dataclass(frozen=True)
class Key:
    """Seed and position of the random numbers of one batch.

    >>> whole = Key(seed=0, epoch=3).uniform(4)
    >>> torch.equal(whole[2:], Key(seed=0, epoch=3, place=2).uniform(2))
    True

    A sample's numbers depend on its place in the epoch, so they do not depend on the batch size.

    The generator is NumPy's Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), with
    the key (seed, epoch) and the counter (place * blocks + block, draw). A block is four numbers. A sample's blocks
    are consecutive, so one call draws those of a batch.

    Attributes:
        seed: the seed of the training run.
        epoch: the number of the epoch.
        place: the place of the batch's first sample in the epoch.
        draw: the index of the transform, so that transforms draw different numbers for the same sample.
        stride: the distance in places between samples of the batch: the number of ranks that share the epoch.
        view: which of a sample's images is transformed: each view has draws of its own, but for those of the batch.
    """

    seed: int = 0
    epoch: int = 0
    place: int = 0
    draw: int = 0
    stride: int = 1
    view: int = 0

    @classmethod
    def fresh(cls) -> Key:
        """A key with a seed from torch's global generator, for a transform that is called without a key."""
        return cls(seed=int(torch.randint(2**63 - 1, ())))

    def for_draw(self, draw: int) -> Key:
        """The key of the transform with index ``draw``."""
        return replace(self, draw=draw)

    def advanced(self, samples: int) -> Key:
        """The key of the batch that starts ``samples`` samples later."""
        return replace(self, place=self.place + samples * self.stride)

    def uniform(self, samples: int, count: int = 1) -> torch.Tensor:
        """Numbers in [0, 1), float64 (samples, count), on the CPU; (samples,) if ``count`` is 1."""
        numbers = torch.from_numpy((self._words(samples, count) >> np.uint64(11)) * 2.0**-53)
        return numbers[:, 0] if count == 1 else numbers

    def integers(self, samples: int) -> torch.Tensor:
        """One number for each sample, int64 (samples,), uniform over 0 to 2**63 - 1: seeds of noise on the device."""
        return torch.from_numpy((self._words(samples, 1)[:, 0] >> np.uint64(1)).astype(np.int64))

    def generator(self) -> np.random.Generator:
        """A NumPy generator for numbers drawn once for a batch, the same for all views, by its first sample's place."""
        return np.random.Generator(self._philox(self.place, _BATCH, view=0))

    def _words(self, samples: int, count: int) -> np.ndarray:
        """Random words, uint64 (samples, count)."""
        places = max(samples - 1, 0) * self.stride + 1
        blocks = -(-count // _WORDS)
        drawn = self._philox(self.place * blocks, _SAMPLES, self.view).random_raw(places * blocks * _WORDS)
        words: np.ndarray = drawn.reshape(places, -1)[:: self.stride][:samples, :count]
        return words

    def _philox(self, first: int, stream: int, view: int) -> np.random.Philox:
        key, counter = (
            np.array([number % 2**64 for number in numbers], dtype=np.uint64)
            for numbers in ((self.seed, self.epoch), (first, self.draw, stream, view))
        )
        return np.random.Philox(key=key, counter=counter)

    def for_view(self, view: int) -> Key:
        """The key of a sample's image number ``view``."""
        return replace(self, view=view)
