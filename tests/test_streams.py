"""Streams and events: used again when their owner is gone, and never given out twice."""

import gc
import subprocess
import sys
from collections import Counter

import pytest
import torch

from fastload import streams
from fastload.streams import MOST_SPARE, POOL, EventFence, SideStream
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
    SideStream(device)
    gc.collect()
    to_spare = streams._spare[device].qsize()
    assert to_spare > 0
    for _ in range(2 * POOL):
        SideStream(device)
        gc.collect()
        assert streams._spare[device].qsize() == to_spare


def test_owners_that_are_there_at_once_have_streams_of_their_own(device):
    sides = [SideStream(device) for _ in range(POOL // 2)]
    for _ in range(POOL - 3):  # so that the pool would begin anew with the streams that they have
        torch.get_device_module(device).Stream(device)
    sides += [SideStream(device) for _ in range(POOL // 4)]
    assert len(set(map(number_of, sides))) == len(sides)


def test_owners_share_evenly_where_there_are_more_than_streams(device):
    owners = Counter(number_of(side) for side in [SideStream(device) for _ in range(2 * POOL)])
    assert len(owners) >= POOL - 2  # those for small copies are not given out
    assert max(owners.values()) <= 4


def test_an_event_is_recorded_again_when_its_fence_is_gone(device):
    stream = SideStream(device).consumer()
    events = [EventFence(stream).event for _ in range(20)]
    assert all(event is events[0] for event in events)


def test_fences_that_are_there_at_once_have_events_of_their_own(device):
    side = SideStream(device)
    for _ in range(2):
        fences = [side.prepared() for _ in range(2 * MOST_SPARE)]
        assert len({id(fence.event) for fence in fences}) == len(fences)


def test_a_fence_takes_no_event_of_a_timestamp(device):
    side = SideStream(device)
    event = side.timestamp()._recorded.event
    assert side.prepared().event is not event
    assert side.timestamp()._recorded.event is event


def refuse(*_):
    raise RuntimeError("cannot be recorded")


def test_an_event_that_cannot_be_recorded_is_not_used_again(device, monkeypatch):
    side = SideStream(device)
    event = side.prepared().event
    with monkeypatch.context() as patch:
        patch.setattr(type(event), "record", refuse)
        with pytest.raises(RuntimeError, match="cannot be recorded"):
            side.prepared()
    assert side.prepared().event is not event


AT_ITS_END = """
from fastload import streams

class Event:
    def __del__(self):
        print("destroyed")

streams._spare_events[Event, 0, False].append(Event())
"""


@pytest.mark.long
def test_the_end_of_a_process_destroys_no_event():
    done = subprocess.run([sys.executable, "-c", AT_ITS_END], capture_output=True, text=True, check=True)
    assert done.stdout == ""


AFTER_A_PASS = """
import os, sys
import torch
import fastload as fl

for _ in fl.PrefetchLoader([torch.zeros(2, 3, 8, 8)] * 4, device="cuda"):
    pass
child = os.fork()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)
"""


@pytest.mark.gpu
def test_a_forked_process_ends_as_any_other():
    subprocess.run([sys.executable, "-c", AFTER_A_PASS], check=True)
