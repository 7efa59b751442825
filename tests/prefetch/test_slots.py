"""Slots are for as many batches as there may be, and know whether the device had room for more."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fastload.prefetch.slots import IN_HAND, SlotPool


class Passing:
    """A point in the work of a device, and a side stream whose every point it is."""

    def __init__(self, *, is_passed):
        self.is_passed = is_passed

    def consumed(self, consumer):  # noqa: ARG002
        return self

    def wait(self): ...

    def passed(self):
        return self.is_passed


@pytest.mark.parametrize("is_passed", [False, True])
def test_the_device_had_room_where_a_slot_was_free_at_once(is_passed):
    slots, side = SlotPool(depth=1), Passing(is_passed=is_passed)
    for _ in range(1 + IN_HAND):
        slots.release(side)  # the consumer asks
        slots.hand_out(slots.acquire(), None)
        assert slots.had_room  # nobody had these slots before
    slots.release(side)
    slots.acquire()
    assert slots.had_room == is_passed


def test_the_device_had_no_room_where_the_consumer_had_to_ask_first():
    slots, side = SlotPool(depth=1), Passing(is_passed=True)
    for _ in range(IN_HAND):
        slots.release(side)
        slots.hand_out(slots.acquire(), None)
    slots.acquire()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(slots.acquire)
        while not waiting.running():
            time.sleep(0.001)
        time.sleep(0.05)
        slots.release(side)
        waiting.result()
    assert not slots.had_room
