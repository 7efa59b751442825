"""Random words: the published mixer, the counter's bits, and statistics. docs/randomness.md has more of them."""

import numpy as np
import pytest

from fastload.transforms.random_words import GOLDEN, WORD, _keys, _mix, _mixed, random_words
from tests.counts import count

# The first outputs of SplitMix64 from a seed: those of Steele, Lea and Flood's SplittableRandom.
SPLITMIX64 = {
    0: [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F],
    1234567: [6457827717110365317, 3203168211198807973, 9817491932198370423],
}
SIX_STANDARD_DEVIATIONS = 6


def counters(number, start=0):
    return np.arange(start, start + number, dtype=np.uint64)


@pytest.mark.parametrize("seed", SPLITMIX64)
def test_the_mixer_is_that_of_splitmix64(seed):
    states = [(seed + step * GOLDEN) % WORD for step in (1, 2, 3)]
    words = np.array(states, dtype=np.uint64)
    _mix(words, np.empty_like(words))
    assert [_mixed(state) for state in states] == words.tolist() == SPLITMIX64[seed]


def test_a_word_depends_on_counter_seed_and_stream_alone():
    table = random_words(counters(12).reshape(3, 4), seed=5, stream=7)
    assert np.array_equal(table[1, 2:], random_words(counters(2, start=6), 5, 7))
    others = [random_words(counters(12), seed, stream) for seed, stream in ((5, 8), (6, 7), (7, 5))]
    assert not np.isin(others, table).any()


def test_no_two_pairs_of_seed_and_stream_have_the_same_keys():
    pairs = [(seed, stream) for seed in range(64) for stream in range(64)]
    assert len({tuple(int(key) for key in _keys(*pair)) for pair in pairs}) == len(pairs)


def test_rows_may_have_streams_of_their_own():
    table = random_words(counters(12).reshape(3, 4), 5, ((7,), (2**40,), (7,)))
    for row, stream in enumerate((7, 2**40, 7)):
        assert np.array_equal(table[row], random_words(counters(4, start=4 * row), 5, stream))


def test_columns_may_have_streams_of_their_own():
    streams = ((7, 1), (2**40, 9))
    table = random_words(counters(8).reshape(2, 4), 5, streams, np.array([1, 0, 0, 1]))
    for row, (one, other) in enumerate(streams):
        alone = [random_words(counters(4, start=4 * row), 5, stream) for stream in (one, other)]
        assert np.array_equal(table[row], np.where([False, True, True, False], *alone))


@pytest.mark.parametrize("part", ["counter", "seed", "stream"])
def test_one_bit_of_a_part_changes_half_of_the_words_bits(part):
    """Each of the 64 bits of a word changes with probability a half, whichever bit of the part does."""
    number = count(full=20_000, here=500)
    deviation = 0.5 / number**0.5
    for bit in range(64 if part != "seed" else 63):
        flips = {"counter": (1 << bit, 0, 0), "seed": (0, 1 << bit, 0), "stream": (0, 0, 1 << bit)}[part]
        before = random_words(counters(number), 3, 9)
        after = random_words(counters(number) ^ np.uint64(flips[0]), 3 ^ flips[1], 9 ^ flips[2])
        changed = np.unpackbits((before ^ after).view(np.uint8).reshape(number, 8), axis=1).mean(0)
        assert abs(changed - 0.5).max() < SIX_STANDARD_DEVIATIONS * deviation, bit
