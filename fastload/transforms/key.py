"""``Key``: random numbers that depend on a sample's place in the epoch, and not on batches, ranks or workers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from operator import index
from typing import Any

import numpy as np
import torch

from fastload.transforms.random_words import random_words

__all__ = ["VIEWS", "Key"]

# Bits of the counter (docs/randomness.md). A call has the upper word, each number that it draws the lower one.
PLACES = 2**40
VIEWS = 2**8
LIMITS = {"seed": 2**63, "epoch": 2**32, "draw": 2**16, "view": VIEWS}
LIMITS |= dict.fromkeys(("place", "stride", "step"), PLACES)
NUMBERS = 2**24  # of a sample
DRAW = 16  # where the draw's bits begin in a stream
UNIFORM, SEEDS, BATCH = range(3)  # kinds of draws: numbers of each sample, seeds of each sample, numbers of the batch


@dataclass(frozen=True)
class Key:
    """Seed and position of the random numbers of one batch.

    >>> whole = Key(seed=0, epoch=3).uniform(4)
    >>> torch.equal(whole[2:], Key(seed=0, epoch=3, place=2).uniform(2))
    True

    A sample's numbers depend on its place in the epoch, so they do not depend on the batch size. Each is a function of
    the seed and a counter of 128 bits, in which epoch, transform, view, kind of draw, place and number have bits of
    their own. docs/randomness.md has the layout, and how ranks share an epoch.

    Attributes:
        seed: the seed of the training run, from 0 to 2**63 - 1.
        epoch: the number of the epoch, below 2**32.
        place: the place of the batch's first sample in the epoch; the last sample's is below 2**40.
        draw: the index of the transform, below 2**16, so that transforms draw different numbers for the same sample.
        stride: the distance in places between neighbours in the batch: the number of ranks that are dealt samples in
            turn.
        step: the distance in places to the next batch, for each sample of this one: the number of ranks.
        view: which of several images of a sample is transformed, below 2**8.

    Raises:
        TypeError: one of them is not an integer; NumPy's integers are.
        ValueError: one of them is out of its range; when drawn, a place is.
    """

    seed: int = 0
    epoch: int = 0
    place: int = 0
    draw: int = 0
    stride: int = 1
    step: int = 1
    view: int = 0
    _rows: np.ndarray | None = field(default=None, compare=False, repr=False)
    _views: tuple[int, ...] = field(default=(), compare=False, repr=False)  # the numbers of several views,
    _which: np.ndarray | None = field(default=None, compare=False, repr=False)  # and the index of each row's among them
    _drawn: Mapping[int, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in LIMITS:
            object.__setattr__(self, name, _within_limit(name, getattr(self, name)))

    @classmethod
    def fresh(cls) -> Key:
        """A key with a seed from torch's global generator, for a transform that is called without a key."""
        return cls(seed=int(torch.randint(2**63 - 1, ())))

    def for_draw(self, draw: int) -> Key:
        """The key of the transform with index ``draw``."""
        return self._with(draw=_within_limit("draw", draw))

    def for_view(self, view: int) -> Key:
        """The key of a sample's image number ``view``."""
        if view == self.view:
            return self
        return self._with(view=_within_limit("view", view))

    def for_views(self, views: Sequence[int], samples: int) -> Key:
        """The key of several views of ``samples`` samples: all samples of the first view, then all of the next.

        >>> both = Key().for_views([3, 2], samples=4).uniform(8)
        >>> torch.equal(both, torch.cat([Key().for_view(3).uniform(4), Key().for_view(2).uniform(4)]))
        True

        :meth:`generator` has no numbers for it, since those are drawn once for a batch.
        """
        numbers = tuple(_within_limit("view", view) for view in views)
        if len(numbers) == 1:
            return self.for_view(numbers[0])
        rows = np.arange(samples) if self._rows is None else self._rows
        which = np.repeat(np.arange(len(numbers)), samples)
        return self._with(_rows=np.tile(rows, len(numbers)), _views=numbers, _which=which)

    def for_rows(self, rows: torch.Tensor) -> Key:
        """The key of some samples of this key's batch, int64 (M,), as if there were no others.

        >>> torch.equal(Key().for_rows(torch.tensor([0, 2])).uniform(2), Key().uniform(3)[[0, 2]])
        True
        """
        chosen = rows.numpy()
        some = chosen if self._rows is None else self._rows[chosen]
        return self._with(_rows=some, _which=None if self._which is None else self._which[chosen])

    def advanced(self, samples: int) -> Key:
        """The key of the batch that comes after ``samples`` samples."""
        return self._with(place=_within_limit("place", self.place + samples * self.step))

    def from_sample(self, sample: int) -> Key:
        """The key of this batch from the sample with index ``sample`` on."""
        return self._with(place=_within_limit("place", self.place + sample * self.stride))

    def uniform(self, samples: int, count: int = 1) -> torch.Tensor:
        """Numbers in [0, 1), multiples of 2**-32: float64 (samples, count) on the CPU; (samples,) if ``count`` is 1."""
        return torch.from_numpy(self.numbers(samples, count))

    def numbers(self, samples: int, count: int = 1) -> np.ndarray:
        """:meth:`uniform` as a NumPy array."""
        numbers = self._drawn.get(self.draw)
        if numbers is None or numbers.shape[1] != samples or len(numbers) < count:
            words = self._words(samples, -(-count // 2), UNIFORM)
            numbers = _numbers(words)
        drawn: np.ndarray = numbers[0] if count == 1 else numbers[:count].T
        return drawn

    def drawn(self, samples: int, counts: Mapping[int, int]) -> Key:
        """The same key with numbers drawn ahead: of each sample so many of :meth:`uniform`'s for each ``draw``.

        >>> key = Key(seed=3)
        >>> ahead = key.drawn(4, {0: 2, 1: 5})
        >>> torch.equal(ahead.for_draw(1).uniform(4, 5), key.for_draw(1).uniform(4, 5))
        True

        All are drawn at once, which takes as long as one of the draws: NumPy's calls take longer than their work.
        """
        words, places = _layout_of(tuple(counts.items()))
        first = tuple([stream - (self.draw << DRAW) for stream in self._streams(UNIFORM)])
        streams = _streams_of(tuple(counts), words, first)
        numbers = _numbers(random_words(self._counters(samples, words), self.seed, streams, self._which))
        return self._with(_drawn={draw: numbers[place] for draw, place in places.items()})

    def integers(self, samples: int) -> torch.Tensor:
        """One number for each sample, int64 (samples,), uniform over 0 to 2**63 - 1: seeds of noise on the device."""
        return torch.from_numpy((self._words(samples, 1, SEEDS)[0] >> np.uint64(1)).view(np.int64))

    def generator(self) -> np.random.Generator:
        """A NumPy generator for numbers drawn once for a batch; they depend on the place of its first sample.

        It is this thread's only one: draw all that is wanted before the next is asked for. A new one would ask the
        system for randomness, though it is given its key.
        """
        if self._which is not None:
            raise ValueError(f"numbers drawn once for a batch are those of one view; got the key of {self._views}")
        philox, state, generator = _own_generator()
        # NumPy's own Philox counts in the first word of its counter, and the others stay.
        counter = np.array([0, self.place, self._stream(BATCH, self.view), 0], dtype=np.uint64)
        state["state"] = {"counter": counter, "key": np.array([self.seed, 0], dtype=np.uint64)}
        philox.state = state
        return generator

    def _with(self, **values: Any) -> Key:
        """The same key with other values; several are made for each batch, and a whole new one takes longer."""
        key = object.__new__(Key)
        fields = vars(key)
        fields.update(vars(self))
        if "draw" not in values:
            fields["_drawn"] = {}
        fields.update(values)
        return key

    def _words(self, samples: int, count: int, kind: int) -> np.ndarray:
        """Random words, uint64 (count, samples)."""
        if count > NUMBERS:
            raise ValueError(f"a transform draws at most {2 * NUMBERS} numbers for a sample; got {2 * count}")
        counters = self._counters(samples, (count,))
        if self._which is None:
            return random_words(counters, self.seed, self._stream(kind, self.view))
        return random_words(counters, self.seed, (self._streams(kind),), self._which)

    def _counters(self, samples: int, words: tuple[int, ...]) -> np.ndarray:
        """The counters of so many words of each draw, uint64 (sum of ``words``, samples).

        Those of a sample begin at its place in the epoch times ``NUMBERS``, for each draw.
        """
        if self._rows is None:
            last_row, counters = samples - 1, _counters_of(samples, words, self.stride)
        else:
            if len(self._rows) != samples:
                raise ValueError(f"the key is that of {len(self._rows)} samples of a batch; got {samples} samples")
            last_row = int(self._rows.max(initial=0))
            counters = _counted(words) + self._rows.astype(np.uint64) * np.uint64(self.stride * NUMBERS)
        last = self.place + last_row * self.stride
        if last >= PLACES:
            raise ValueError(f"a sample's place in the epoch must be below 2**40; got {last}")
        moved: np.ndarray = counters + np.uint64(self.place * NUMBERS)
        return moved

    def _streams(self, kind: int) -> tuple[int, ...]:
        """The stream of each view; there is one, unless the key is that of several."""
        return tuple([self._stream(kind, view) for view in self._views or (self.view,)])

    def _stream(self, kind: int, view: int) -> int:
        """Epoch, transform, view and kind of draw, in 32, 16, 8 and 8 bits."""
        return self.epoch << 32 | self.draw << DRAW | view << 8 | kind


def _numbers(words: np.ndarray) -> np.ndarray:
    """The numbers in words, uint64 (W, samples): float64 (2 * W, samples), those of a word's lower half first."""
    count, samples = words.shape
    halves = words.astype("<u8", copy=False).view("<u4").reshape(count, samples, 2)
    numbers = np.empty((count, 2, samples))  # a row for each number: NumPy is fastest along long rows
    numbers[...] = halves.swapaxes(1, 2)
    numbers *= 2.0**-32
    return numbers.reshape(2 * count, samples)


_this_thread = threading.local()


def _own_generator() -> tuple[np.random.Philox, Any, np.random.Generator]:
    """The calling thread's generator with the source of its bits, and a state in which nothing has been drawn."""
    if not hasattr(_this_thread, "generator"):
        philox = np.random.Philox(0)
        _this_thread.generator = philox, philox.state, np.random.Generator(philox)
    own: tuple[np.random.Philox, Any, np.random.Generator] = _this_thread.generator
    return own


@lru_cache(maxsize=8)  # a recipe draws the same in each batch of an epoch
def _counters_of(samples: int, words: tuple[int, ...], stride: int) -> np.ndarray:
    """The counters of a batch that begins at place 0."""
    counters: np.ndarray = _counted(words) + np.arange(samples, dtype=np.uint64) * np.uint64(stride * NUMBERS)
    return counters


def _counted(words: tuple[int, ...]) -> np.ndarray:
    """The index of each word in its draw, of which there are so many, uint64 (W, 1)."""
    return np.concatenate([np.arange(count, dtype=np.uint64) for count in words])[:, None]


@lru_cache(maxsize=64)
def _layout_of(counts: tuple[tuple[int, int], ...]) -> tuple[tuple[int, ...], dict[int, slice]]:
    """Of draws with so many numbers each: the words of each, and where its numbers are among those of all words."""
    words = tuple(-(-count // 2) for _, count in counts)
    ends = accumulate(2 * count for count in words)
    return words, {draw: slice(end - 2 * count, end) for (draw, _), count, end in zip(counts, words, ends, strict=True)}


@lru_cache(maxsize=1024)
def _streams_of(draws: tuple[int, ...], words: tuple[int, ...], first: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The stream of each word for each view; ``first`` has the streams that draw 0 would have."""
    rows = (draw << DRAW for draw, count in zip(draws, words, strict=True) for _ in range(count))
    return tuple(tuple(stream + row for stream in first) for row in rows)


def _within_limit(name: str, given: Any) -> int:
    """What was given for a field, as an int."""
    try:
        number = given if type(given) is int else index(given)
    except TypeError:
        raise TypeError(f"{name} must be an int; got {given!r}") from None
    if not 0 <= number < LIMITS[name]:
        raise ValueError(f"{name} must be from 0 to {LIMITS[name] - 1}; got {given!r}")
    return number
