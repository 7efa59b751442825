"""Streams: taken when there is none to spare, used again when their owner is gone, and never given out twice."""

import gc

import pytest
import torch

from fastload.streams import POOL, SideStream
from tests.adversary.device import DEVICE, Device
from tests.adversary.program import simulated
from tests.adversary.schedule import Schedule


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cuda":
        yield torch.device("cuda", 0)
        return
    with simulated(Device(Schedule()), small=0):
        yield DEVICE


def number_of(side):
    return side._stream.stream_id


def test_a_stream_is_used_again_when_its_owner_is_gone(device):
    numbers = set()
    for _ in range(2 * POOL):
        side = SideStream(device)
        numbers.add(number_of(side))
        del side
        gc.collect()
    assert len(numbers) < POOL  # as many as were there to spare


def test_owners_that_are_there_at_once_have_streams_of_their_own(device):
    sides = [SideStream(device) for _ in range(POOL // 2)]
    for _ in range(POOL - 3):  # so that the pool would begin anew with the streams that they have
        torch.get_device_module(device).Stream(device)
    sides += [SideStream(device) for _ in range(POOL // 4)]
    assert len(set(map(number_of, sides))) == len(sides)
