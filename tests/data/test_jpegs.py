"""Files as nvJPEG is handed them, which can be told without JPEG engines."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.data.jpegs import PLANES, Jpegs

MiB = 2**20


def batch(lengths, heights, widths, gap=0):
    """Files one after the other in a block of memory, and images whose rows are of whole words."""
    lengths, heights, widths = (np.array(each, dtype=np.int64) for each in (lengths, heights, widths))
    pitches = -(-widths // 16) * 16
    planes = heights * pitches
    starts = np.cumsum(3 * planes) - 3 * planes
    addresses = MiB + np.cumsum(lengths + gap) - lengths - gap
    channels = starts[:, None] + planes[:, None] * np.arange(3)
    return Jpegs.of(addresses, lengths, channels, pitches)


@given(st.lists(st.integers(1, 2**40), min_size=2, max_size=50))
def test_halves_have_each_file_once_the_longest_first(lengths):
    count = len(lengths)
    addresses, planes = np.arange(count), np.arange(3 * count).reshape(count, 3)
    whole = Jpegs.of(addresses, np.array(lengths), planes, 100 + addresses)
    halves = whole.halves()
    assert [len(half) for half in halves] == [count - count // 2, count // 2]
    assert sorted(address for half in halves for address in half.addresses) == addresses.tolist()
    for files in (whole, *halves):
        assert files.lengths.tolist() == sorted((lengths[address] for address in files.addresses), reverse=True)
        assert files.images[:, :3].tolist() == planes[files.addresses].tolist()
        assert (files.images[:, PLANES : PLANES + 3] == 100 + files.addresses[:, None]).all()
        assert all(array.flags.c_contiguous for array in files.arrays)


@pytest.mark.parametrize(
    ("height", "width", "size"), [(1, 1, (256, 16, 16)), (16, 16, (256, 16, 16)), (33, 100, (48 * 112, 112, 48))]
)
def test_sizes_are_of_whole_blocks(height, width, size):
    assert batch([9], [height], [width]).sizes.tolist() == [[each] for each in size]


def test_a_file_is_repeated_with_the_memory_that_follows_it():
    files = batch([300, 400, 500], heights=[10, 20, 30], widths=[16, 32, 48], gap=10)
    assert files.lengths.tolist() == [500, 400, 300]
    same = files.repeated(1, np.array([2000, 900, 100]))
    assert set(same.addresses.tolist()) == {MiB + 310}
    assert same.lengths.tolist() == [400 + 10 + 500, 900, 400]  # the file is whole in each place
    assert (same.images == files.images[1]).all()
    assert all(array.flags.c_contiguous for array in same.arrays)
