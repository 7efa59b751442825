"""``marking_the_last``: one batch is pulled ahead, and an error still comes at its batch."""

import pytest
import torch

from fastload.prefetch.item import Item
from fastload.prefetch.iterator import marking_the_last
from fastload.resume.position import Position
from fastload.stats.batch_times import BatchTimes


def items(count, error=None):
    for number in range(count):
        yield Item(None, Position(number), BatchTimes(number, torch.device("cpu")))
    if error is not None:
        raise error


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_the_last_item_alone_is_marked(count):
    marked = [item.is_last for item in marking_the_last(items(count))]
    assert marked == [number == count - 1 for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_error_comes_after_the_items_before_it_of_which_none_is_the_last(count):
    pulled = marking_the_last(items(count, OSError("sample 7")))
    assert [next(pulled).is_last for _ in range(count)] == [False] * count
    with pytest.raises(OSError, match="sample 7"):
        next(pulled)
