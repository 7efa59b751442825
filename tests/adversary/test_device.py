"""The rules of memory and streams: those of the simulated device are a GPU's, where there is one to ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.adversary.device import DEVICE, Device, DeviceTensor
from tests.adversary.schedule import Schedule

SIZE = 4 * 2**20


class Simulated:
    """Streams that do nothing until somebody waits for them."""

    device = DEVICE

    def __init__(self) -> None:
        self.module = Device(Schedule())
        self.module.consumer_may_wait = True

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with self.module.work():
            yield

    def hold(self, stream: Any) -> None:
        order = self.module.schedule.order
        order.remove(stream)
        order.append(stream)  # its turn comes when no other can go on
        stream.do(lambda: None)

    def address(self, tensor: DeviceTensor) -> int:
        return tensor.cells.data_ptr()


class Cuda:
    device = torch.device("cuda")
    module = torch.cuda

    @contextmanager
    def at_work(self) -> Iterator[None]:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        yield
        torch.cuda.synchronize()

    def hold(self, stream: Any) -> None:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000_000)

    def address(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr()


@pytest.fixture(params=[Simulated, pytest.param(Cuda, marks=pytest.mark.gpu)])
def world(request):
    world = request.param()
    with world.at_work():
        yield world


def empty(world: Simulated | Cuda, stream: Any) -> torch.Tensor:
    with world.module.stream(stream):
        return torch.empty(SIZE, dtype=torch.uint8, device=world.device)


def test_freed_memory_is_its_own_streams_at_once(world):
    side, other = world.module.Stream(), world.module.Stream()
    block = empty(world, side)
    address = world.address(block)
    world.hold(other)
    other.wait_stream(side)  # it may read the block for as long as it likes, for all that the allocator knows
    del block
    assert world.address(empty(world, side)) == address


def test_freed_memory_is_not_another_streams(world):
    side, other = world.module.Stream(), world.module.Stream()
    block = empty(world, side)
    address = world.address(block)
    del block
    assert world.address(empty(world, other)) != address


def test_memory_of_a_recorded_stream_is_free_when_it_has_passed(world):
    side, other = world.module.Stream(), world.module.Stream()
    block = empty(world, side)
    address = world.address(block)
    world.hold(other)
    block.record_stream(other)
    del block
    meanwhile = empty(world, side)
    assert world.address(meanwhile) != address
    other.synchronize()
    assert world.address(empty(world, side)) == address


def test_a_view_keeps_the_memory(world):
    side = world.module.Stream()
    view = empty(world, side)[1:3]
    address = world.address(view) - 1
    assert world.address(empty(world, side)) != address


def test_a_wait_is_for_the_point_at_which_the_event_was_recorded_last(world):
    side, other = world.module.Stream(), world.module.Stream()
    event = world.module.Event()
    event.record(side)
    other.wait_event(event)
    world.hold(side)
    event.record(side)
    other.synchronize()  # not held
    assert not event.query()


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_copy_reads_pinned_memory_when_it_is_done(world, is_pinned):
    source = torch.full((SIZE,), 1, dtype=torch.uint8)
    source = source.pin_memory() if is_pinned else source
    side = world.module.Stream()
    world.hold(side)
    with world.module.stream(side):
        copy = source.to(world.device, non_blocking=True)
    source.fill_(2)
    side.synchronize()
    assert copy[:1].item() == (2 if is_pinned else 1)


def test_freed_pinned_memory_waits_for_the_copy(world):
    side = world.module.Stream()
    world.hold(side)
    source = torch.full((SIZE,), 1, dtype=torch.uint8).pin_memory()
    address = source.data_ptr()
    with world.module.stream(side):
        source.to(world.device, non_blocking=True)
    del source
    meanwhile = torch.full((SIZE,), 2, dtype=torch.uint8).pin_memory()
    assert meanwhile.data_ptr() != address
    side.synchronize()
    assert torch.full((SIZE,), 3, dtype=torch.uint8).pin_memory().data_ptr() == address
