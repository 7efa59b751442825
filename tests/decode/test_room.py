"""What nvJPEG's buffers grow for, which can be told without JPEG engines."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.decode.room import LARGE, LONG, MARGIN, NO_ROOM
from tests.data.test_jpegs import batch

USUAL = {"heights": [375] * 16, "widths": [500] * 16}


def room_for(files):
    return NO_ROOM.larger(files)[0]


@given(st.lists(st.tuples(st.integers(1, 10**7), st.integers(1, 9000), st.integers(1, 9000)), min_size=1, max_size=40))
def test_a_batch_has_room_after_it_has_come(sizes):
    files = batch(*zip(*sizes, strict=True))
    assert not NO_ROOM.holds(files)
    assert room_for(files).holds(files)


@pytest.mark.parametrize(
    ("change", "has_room"),
    [
        ({}, True),
        ({"heights": [375] * 15 + [384]}, True),  # the same whole blocks
        ({"heights": [375] * 15 + [385]}, False),
        ({"widths": [500] * 15 + [512]}, True),
        ({"widths": [500] * 15 + [513]}, False),
        ({"heights": [80] * 16, "widths": [528] * 16}, False),  # fewer pixels, and longer rows
        ({"heights": [375] * 15 + [385], "widths": [500] * 15 + [12000]}, True),  # a huge one
        ({"lengths": [MARGIN * 9000] * 16}, True),
        ({"lengths": [9000] * 15 + [MARGIN * 9000 + 1]}, False),
        ({"lengths": [9000] * 15 + [100 * LONG * 9000]}, True),  # a huge one
    ],
)
def test_room_is_for_all_but_the_few_that_are_long_or_large(change, has_room):
    lengths = [9000] * 16
    assert room_for(batch(lengths, **USUAL)).holds(batch(**{"lengths": lengths, **USUAL, **change})) == has_room


def test_each_place_has_room_for_longer_files_of_places_further_up():
    files = batch(range(16, 0, -1), **USUAL)
    _, batches = NO_ROOM.larger(files)
    assert [each.lengths.tolist() for each in batches] == [
        [32, 32, 32, 30, 28, 26, 24, 22, 20, 18, 16, 16, 16, 16, 16, 16]
    ]


def test_no_memory_is_taken_for_the_few_that_are_long():
    lengths = [10 * LONG * 9000] + [9000] * 31
    (only,) = NO_ROOM.larger(batch(lengths, heights=[375] * 32, widths=[500] * 32))[1]
    assert only.lengths.tolist() == [MARGIN * 9000] * 32


def test_buffers_grow_by_the_largest_image_the_widest_and_the_highest_but_not_by_the_few_that_are_large():
    heights, widths = [375] * 13 + [500, 360, 4000], [500] * 13 + [375, 640, 6000]
    assert heights[-1] * widths[-1] > LARGE * np.multiply(heights, widths).mean()
    lengths = range(116, 100, -1)
    _, batches = NO_ROOM.larger(batch(lengths, heights, widths))
    assert [each.sizes[:, 0].tolist() for each in batches] == [[368 * 640, 640, 368], [512 * 384, 384, 512]]


def test_room_that_was_made_stays():
    """More of it is made for as many places as the batch has that needs more."""
    room = room_for(batch([9000] * 16, **USUAL))
    more = batch([100] * 8, heights=[600] * 8, widths=[375] * 8)
    assert not room.holds(more)
    room, _ = room.larger(more)
    assert room.holds(batch([9000] * 8, heights=[375] * 8, widths=[500] * 8))
    assert room.holds(more)
    assert room.holds(batch([9000] * 16, **USUAL))
    assert not room.holds(batch([100] * 9, heights=[600] * 9, widths=[375] * 9))


def test_a_file_that_is_long_makes_no_room_for_its_image_either():
    """It would have to be in every place."""
    files = batch([10 * LONG * 9000] + [9000] * 31, heights=[600] + [375] * 31, widths=[500] * 32)
    room, (only,) = NO_ROOM.larger(files)
    assert only.sizes[:, 0].tolist() == [384 * 512, 512, 384]
    assert room.holds(files)


def test_in_hundreds_of_batches_all_buffers_grow_a_few_times():
    """Whatever the first batch is: here small images, all the same."""
    random = np.random.default_rng(0)
    room = room_for(batch([4000] * 64, heights=[300] * 64, widths=[300] * 64))
    grows = []
    for number in range(500):
        lengths, sides = random.integers(40_000, 160_000, 64), random.integers(300, 530, (2, 64))
        files = batch(lengths, *sides)
        if not room.holds(files):
            grows.append(number)
            room, _ = room.larger(files)
    assert grows
    assert len(grows) < 6
    assert max(grows) < 20
