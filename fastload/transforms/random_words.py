"""``random_words``: 64 random bits for each counter, as a function of the counter and a key alone.

Salmon et al. ("Parallel random numbers: as easy as 1, 2, 3", SC 2011) call this a counter-based generator. Theirs,
Philox, takes four times as long in NumPy, which has no product of 64-bit numbers with 128 bits.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

__all__ = ["random_words"]

WORD = 2**64
SHIFTS = 30, 27, 31
FACTORS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
GOLDEN = 0x9E3779B97F4A7C15  # what SplitMix64's counter grows by
# NumPy takes arrays without axes faster than its scalars.
FIRST, SECOND, THIRD = (np.array(shift, dtype=np.uint64) for shift in SHIFTS)
ONE_FACTOR, OTHER_FACTOR = (np.array(factor, dtype=np.uint64) for factor in FACTORS)


def random_words(
    counters: np.ndarray, seed: int, stream: int | tuple[tuple[int, ...], ...], which: np.ndarray | None = None
) -> np.ndarray:
    """Random words, uint64, for counters, uint64, of any shape; ``seed`` and ``stream`` are from 0 to 2**64 - 1.

    >>> random_words(np.array([0, 1], dtype=np.uint64), seed=0, stream=0) % np.uint64(100)
    array([39, 41], dtype=uint64)

    Several streams are those of the rows of ``counters``, (R, C): one for each row, or several for each, of which
    ``which``, int64 (C,), is the index of each column's.

    The words of one seed and stream are all different: counters are mapped one to one. Two mixers, with a key before
    each, are an iterated Even-Mansour cipher (Bogdanov et al., "Key-alternating ciphers in a provable setting",
    EUROCRYPT 2012). No two pairs of seed and stream have the same keys.
    """
    before, between = _keys(seed, stream) if isinstance(stream, int) else _keys_of_rows(seed, stream)
    if which is not None:
        before, between = before[:, which], between[:, which]
    words: np.ndarray = counters ^ before
    spare = np.empty_like(words)
    _mix(words, spare)
    words ^= between
    _mix(words, spare)
    return words


def _mix(words: np.ndarray, spare: np.ndarray) -> None:
    """Apply ``_mixed`` to each word in place; ``spare`` is memory of the same shape."""
    np.right_shift(words, FIRST, out=spare)
    np.bitwise_xor(words, spare, out=words)
    np.multiply(words, ONE_FACTOR, out=words)
    np.right_shift(words, SECOND, out=spare)
    np.bitwise_xor(words, spare, out=words)
    np.multiply(words, OTHER_FACTOR, out=words)
    np.right_shift(words, THIRD, out=spare)
    np.bitwise_xor(words, spare, out=words)


@lru_cache(maxsize=1024)  # a transform draws with the same keys all through an epoch
def _keys(seed: int, stream: int) -> tuple[np.ndarray, np.ndarray]:
    """The keys of the two mixers: a Feistel network of four rounds, which maps pairs of 64-bit numbers one to one."""
    left, right = seed, stream
    for step in range(4):
        left, right = right, left ^ _mixed((right + step * GOLDEN) % WORD)
    return np.array(left, dtype=np.uint64), np.array(right, dtype=np.uint64)


@lru_cache(maxsize=1024)
def _keys_of_rows(seed: int, streams: tuple[tuple[int, ...], ...]) -> tuple[np.ndarray, np.ndarray]:
    keys = np.array([[_keys(seed, stream) for stream in row] for row in streams])
    return keys[..., 0], keys[..., 1]


def _mixed(word: int) -> int:
    """The mixer of SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014."""
    for shift, factor in zip(SHIFTS, (*FACTORS, 1), strict=True):
        word = (word ^ word >> shift) * factor % WORD
    return word
