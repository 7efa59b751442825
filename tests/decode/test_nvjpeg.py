"""What nvJPEG is handed, and what its buffers grow for, which can be told without JPEG engines."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastload.decode.nvjpeg import PLANES, Files, _largest, _longer_lengths

WIDTHS = np.array([500] * 13 + [375, 640, 6000], dtype=np.uint64)
HEIGHTS = np.array([375] * 13 + [500, 360, 4000], dtype=np.uint64)


def test_buffers_grow_for_the_largest_the_widest_and_the_highest_but_not_for_the_few_that_are_huge():
    largest, widest, highest = _largest(WIDTHS * HEIGHTS, WIDTHS)
    assert (largest, widest, highest) == (14, 14, 13)


def test_each_place_is_given_twice_the_length_of_a_file_further_up_where_the_longer_ones_are():
    lengths = np.arange(16, 0, -1, dtype=np.uint64)
    assert _longer_lengths(lengths).tolist() == [32, 32, 32, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6]


def test_a_single_file_is_all_there_is():
    one = np.array([100], dtype=np.uint64)
    assert _largest(one, one) == [0, 0, 0]
    assert _longer_lengths(one).tolist() == [200]


@given(st.lists(st.integers(1, 2**40), min_size=2, max_size=50))
def test_halves_have_each_file_once_the_longest_first(lengths):
    count = len(lengths)
    addresses, planes = np.arange(count), np.arange(3 * count).reshape(count, 3)
    whole = Files.of(addresses, np.array(lengths, dtype=np.uint64), planes, 100 + addresses)
    halves = whole.halves()
    assert [len(half) for half in halves] == [count - count // 2, count // 2]
    assert sorted(address for half in halves for address in half.addresses) == addresses.tolist()
    for files in (whole, *halves):
        assert files.lengths.tolist() == sorted((lengths[address] for address in files.addresses), reverse=True)
        assert files.images[:, :3].tolist() == planes[files.addresses].tolist()
        assert (files.images[:, PLANES : PLANES + 3] == 100 + files.addresses[:, None]).all()
        assert all(array.flags.c_contiguous for array in files.arrays)
