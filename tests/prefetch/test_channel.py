"""Items come in order from one thread to another, then the end, or the error in its place."""

import contextlib
import gc
import threading
import weakref

import pytest

from fastload.prefetch.channel import Channel, End


def test_items_come_in_order_and_then_the_end():
    channel = Channel()
    thread = threading.Thread(target=lambda: [*map(channel.put, range(1000)), channel.end()])
    thread.start()
    assert [channel.take() for _ in range(1000)] == list(range(1000))
    thread.join()
    assert channel.first().is_complete
    with pytest.raises(StopIteration):
        channel.take()


def test_g05_the_first_item_waits_until_it_is_taken():
    channel = Channel()
    channel.put("a")
    assert [channel.first(), channel.first(), channel.take()] == ["a"] * 3


def test_g05_an_error_comes_behind_the_items_before_it_and_once():
    channel = Channel()
    channel.put("a")
    channel.end(OSError("the disk is gone"))
    assert channel.take() == "a"
    with pytest.raises(OSError, match="the disk is gone"):
        channel.take()
    with pytest.raises(StopIteration):
        channel.take()


def test_g05_a_stop_iteration_does_not_pass_for_the_end():
    channel = Channel()
    channel.end(StopIteration("of a transform"))
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        channel.take()


class DiskError(Exception):
    """It may be referred to weakly."""


def test_g04_an_error_that_was_raised_is_freed_with_its_last_reference():
    channel = Channel()
    gc.disable()
    try:
        error = DiskError()
        reference = weakref.ref(error)
        channel.end(error)
        del error
        with contextlib.suppress(DiskError):
            channel.take()
        assert reference() is None
    finally:
        gc.enable()


def test_g06_who_waits_is_woken_when_the_channel_is_closed():
    channel, ends = Channel(), []
    thread = threading.Thread(target=lambda: ends.append(channel.first()))
    thread.start()
    channel.close()
    thread.join(timeout=60)
    assert isinstance(ends[0], End)
    assert not ends[0].is_complete


def test_a_closed_channel_keeps_nothing_that_still_comes():
    channel = Channel()
    channel.put("a")
    channel.close()
    channel.put("b")
    channel.end(ValueError("late"))
    assert len(channel) == 1
    with pytest.raises(StopIteration):
        channel.take()
