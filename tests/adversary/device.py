"""A simulated accelerator: streams that work when the schedule says so, and PyTorch's caching allocators.

Its tensors are ordinary tensors to the code under test: what that code asks of them, and of ``torch.cuda``'s likes,
is queued here, and done on memory of the CPU when the stream's turn comes. docs/adversary.md lists the rules.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tests.adversary.schedule import Host, Schedule

aten = torch.ops.aten

# PyTorch knows the device of its shape-only tensors on every machine. Where shapes are all that is wanted it is named
# without a number.
DEVICE = torch.device("meta", 0)

ROUNDING = 64  # bytes: blocks are of sizes that are multiples of it
NEVER_WRITTEN = 0xEE


class Point:
    """How far a stream has been given work."""

    def __init__(self) -> None:
        self.is_passed = False
        self.at = 0.0

    def is_reached(self) -> bool:
        return self.is_passed

    def reach(self) -> None:
        self.is_passed, self.at = True, time.perf_counter()


class Stream:
    """Work in the order in which it was queued; each thing is done in a turn of its own."""

    device, device_index = DEVICE, DEVICE.index

    def __init__(self, device: Device) -> None:
        self.stream_id = id(self)
        self._device = device
        self._queue: deque[tuple[Callable[[], bool] | None, Callable[[], object] | None]] = deque()
        device.schedule.order.append(self)

    def is_idle(self) -> bool:
        return not self._queue

    def is_ready(self) -> bool:
        if not self._queue:
            return False
        may_begin, _ = self._queue[0]
        return may_begin is None or may_begin()

    def step(self) -> None:
        _, work = self._queue.popleft()
        if work is not None:
            work()

    def do(self, work: Callable[[], object]) -> None:
        self._queue.append((None, work))

    def point(self) -> Point:
        point = Point()
        self.do(point.reach)
        return point

    def wait_event(self, event: Event) -> None:
        self._device.schedule.pause()
        if event.point is not None:  # the point at which it was recorded last; nothing if it never was
            self._queue.append((event.point.is_reached, None))

    def wait_stream(self, other: Stream) -> None:
        event = Event(self._device, is_timed=False)
        event.record(other)
        self.wait_event(event)

    def synchronize(self) -> None:
        self._device.wait(self.point())


class Event:
    def __init__(self, device: Device, *, is_timed: bool) -> None:
        self.point: Point | None = None
        self._device = device
        self._is_timed = is_timed

    def record(self, stream: Stream | None = None) -> None:
        self._device.schedule.pause()
        self.point = (stream or self._device.current_stream()).point()

    def query(self) -> bool:
        return self.point is None or self.point.is_passed

    def synchronize(self) -> None:
        if self.point is not None:
            self._device.wait(self.point)

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds, once the device has passed both."""
        if not (self._is_timed and later._is_timed):
            raise RuntimeError("an event takes no time")
        if self.point is None or later.point is None or not (self.point.is_passed and later.point.is_passed):
            raise RuntimeError("the device has not passed both events")
        return (later.point.at - self.point.at) * 1000


class Block:
    """Some memory. It keeps its content from one owner to the next."""

    def __init__(self, size: int, stream: Stream | None) -> None:
        self.bytes = torch.full((size,), NEVER_WRITTEN, dtype=torch.uint8)
        self.stream = stream
        self.users: set[Stream] = set()
        self.is_taken = True

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of this block that lies where ``tensor`` does in its own storage."""
        place = (tensor.storage_offset(), tensor.shape, tensor.stride())
        return torch.empty(0, dtype=tensor.dtype).set_(self.bytes.untyped_storage(), *place)


class Allocator:
    """PyTorch's rules: a block that is given back is free at once for the stream it was allocated on.

    If other streams were recorded as its users it is free when they have passed the points at which they are now.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._free: defaultdict[tuple[Stream | None, int], list[Block]] = defaultdict(list)
        self._awaited: list[tuple[Block, list[Point]]] = []

    def take(self, nbytes: int, stream: Stream | None) -> Block:
        self.settle()
        size = max(1, -(-nbytes // ROUNDING)) * ROUNDING
        free = self._free[stream, size]
        if not free:
            self.blocks.append(Block(size, stream))
            return self.blocks[-1]
        block = free.pop()
        block.is_taken = True
        block.users = set()
        return block

    def give_back(self, block: Block) -> None:
        self._awaited.append((block, [user.point() for user in block.users]))

    def settle(self) -> None:
        """Free the blocks that are waited for no longer."""
        awaited, self._awaited = self._awaited, []
        for block, points in awaited:
            if all(point.is_passed for point in points):
                block.is_taken = False
                self._free[block.stream, block.bytes.numel()].append(block)
            else:
                self._awaited.append((block, points))

    def taken(self) -> list[Block]:
        """The blocks that nobody else can have."""
        self.settle()
        return [block for block in self.blocks if block.is_taken]


class Ownership:
    """What tensors of the device that share a block have of it: without them it goes back."""

    def __init__(self, allocator: Allocator, block: Block) -> None:
        self._allocator = allocator
        self.block = block

    def __del__(self) -> None:
        self._allocator.give_back(self.block)


class PinnedMemory(np.ndarray):
    """What tensors of the host that share a pinned block have of it."""

    ownership: Ownership


class DeviceTensor(torch.Tensor):
    """A tensor on the simulated device: ``cells`` is its part of a block, touched when its stream's turn comes."""

    __slots__ = ("cells", "device_module", "ownership")  # what a tensor's type knows of it is in its dictionary

    cells: torch.Tensor
    ownership: Ownership
    device_module: Device

    @staticmethod
    def __new__(cls, cells: torch.Tensor, ownership: Ownership, device: Device) -> DeviceTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls, cells.shape, strides=cells.stride(), dtype=cells.dtype, device=DEVICE
        )

    def __init__(self, cells: torch.Tensor, ownership: Ownership, device: Device) -> None:
        self.cells = cells
        self.ownership = ownership
        self.device_module = device

    def record_stream(self, stream: Stream) -> None:
        self.device_module.schedule.pause()
        if stream is not self.ownership.block.stream:
            self.ownership.block.users.add(stream)

    def untyped_storage(self) -> Any:
        """The block's, so that it can be told which tensors share one."""
        return self.cells.untyped_storage()

    def as_subclass(self, cls: type) -> Any:  # noqa: ARG002
        """Itself: all tensors of the device are of one type."""
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on a tensor of the simulated device, outside of it")


class Device:
    """What ``torch.get_device_module`` gives: streams, events, and which stream is a thread's own."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.memory = Allocator()
        self.pinned_memory = Allocator()
        self.is_full_for: set[Host] = set()  # whose next allocation fails
        self.on_allocation: Callable[[], None] = _nothing
        self.consumer_may_wait = False
        self.faults: list[str] = []
        self.default_stream = Stream(self)
        self._current: dict[Host, Stream] = {}
        self._pinned: dict[int, Block] = {}

    def Stream(self, device: torch.device | None = None) -> Stream:  # noqa: N802, ARG002
        return Stream(self)

    def Event(self, *, enable_timing: bool = False, **_: bool) -> Event:  # noqa: N802
        return Event(self, is_timed=enable_timing)

    def current_stream(self, device: torch.device | None = None) -> Stream:  # noqa: ARG002
        return self._current.get(self.schedule.running, self.default_stream)

    def set_stream(self, stream: Stream) -> None:
        self._current[self.schedule.running] = stream

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream()
        self.set_stream(stream)
        try:
            yield
        finally:
            self.set_stream(before)

    def synchronize(self) -> None:
        for stream in self.schedule.streams():
            stream.synchronize()

    def wait(self, point: Point) -> None:
        if self.schedule.running is self.schedule.consumer and not self.consumer_may_wait:
            self.faults.append("the consumer's thread waits for the device")
        self.schedule.pause(point.is_reached)

    def work(self) -> Work:
        """A context in which the calling thread's work on tensors goes to this device."""
        return Work(self)

    def new(self, like: torch.Tensor) -> DeviceTensor:
        """Memory of the current stream's for a tensor; it holds what it held."""
        if self.schedule.running in self.is_full_for:
            self.is_full_for.remove(self.schedule.running)
            raise torch.OutOfMemoryError("the simulated device is full")
        block = self.memory.take(like.numel() * like.itemsize, self.current_stream())
        self.on_allocation()
        cells = block.like(torch.empty_like(like))
        return DeviceTensor(cells, Ownership(self.memory, block), self)

    def new_pinned(self, like: torch.Tensor) -> torch.Tensor:
        block = self.pinned_memory.take(like.numel() * like.itemsize, None)
        self._pinned[block.bytes.data_ptr()] = block
        memory = block.bytes.numpy().view(PinnedMemory)
        memory.ownership = Ownership(self.pinned_memory, block)
        storage = torch.from_numpy(memory).untyped_storage()
        return torch.empty(0, dtype=like.dtype).set_(storage, 0, like.shape, like.contiguous().stride())

    def pinned_block(self, tensor: torch.Tensor) -> Block | None:
        return self._pinned.get(tensor.untyped_storage().data_ptr())


class Work(TorchDispatchMode):
    """Sends a thread's operations on tensors of the device to its current stream."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if handle := HANDLERS.get(func):
            return handle(self, *args, **kwargs)
        if kwargs.pop("pin_memory", False):
            return self._device.new_pinned(func(*args, **kwargs))
        device = kwargs.get("device")
        if torch.device(device) != DEVICE if device else DeviceTensor not in types:
            return func(*map(_cells, args), **kwargs)  # for its shape, or on the host
        if device:
            kwargs["device"] = "cpu"
        return self._computed(func, args, kwargs)

    def _is_pinned(self, tensor: torch.Tensor, *_: Any) -> bool:
        return type(tensor) is not DeviceTensor and self._device.pinned_block(tensor) is not None

    def _pinned(self, tensor: torch.Tensor, *_: Any) -> torch.Tensor:
        return self._device.new_pinned(tensor).copy_(tensor)

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        device = self._device
        owner = next((arg for arg in args if isinstance(arg, DeviceTensor)), None)
        args = [_cells(arg) for arg in args]
        device.schedule.pause()
        stream = device.current_stream()
        if func in (aten._local_scalar_dense.default, aten.equal.default):
            stream.synchronize()
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            stream.do(lambda: func(*args, **kwargs))
            return owner
        result = func(*args, **kwargs)  # of what the memory holds now: for its shape, or a view
        if func.is_view:
            return tree_map(lambda view: DeviceTensor(view, owner.ownership, device), result)
        new = device.new(result)
        if func not in (aten.empty.memory_format, aten.empty_strided.default):
            cells = new.cells
            stream.do(lambda: cells.copy_(func(*args, **kwargs)))
        return new

    def _moved(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        """``tensor.to(...)``: to the device, from it, or to another dtype where it is."""
        device = options.pop("device", None) or tensor.device
        non_blocking = options.pop("non_blocking", False)
        if device.type == tensor.device.type:
            convert = aten._to_copy.default
            on_device = type(tensor) is DeviceTensor
            return self._computed(convert, (tensor,), options) if on_device else convert(tensor, **options)
        like = torch.empty(tensor.shape, dtype=options.get("dtype") or tensor.dtype)
        return self._copied(self._device.new(like) if device.type == DEVICE.type else like, tensor, non_blocking)

    def _copied(self, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if DeviceTensor not in (type(to), type(source)):
            return to.copy_(source)
        device = self._device
        device.schedule.pause()
        stream = device.current_stream()
        cells, source_cells = _cells(to), self._readable(source, stream, non_blocking)
        stream.do(lambda: cells.copy_(source_cells))
        if DeviceTensor is not type(to) or not (non_blocking or type(source) is DeviceTensor):
            stream.synchronize()
        return to

    def _readable(self, source: torch.Tensor, stream: Stream, non_blocking: bool) -> torch.Tensor:
        """What a copy reads when it is done: pinned memory as it is then, pageable memory as it is now."""
        if type(source) is DeviceTensor:
            return source.cells
        block = self._device.pinned_block(source)
        if block is None or not non_blocking:
            return source.clone()
        block.users.add(stream)
        return block.like(source)


HANDLERS: dict[Any, Callable[..., Any]] = {
    aten.is_pinned.default: Work._is_pinned,
    aten._pin_memory.default: Work._pinned,
    aten._to_copy.default: Work._moved,
    aten.copy_.default: Work._copied,
}


def _cells(value: Any) -> Any:
    return value.cells if isinstance(value, DeviceTensor) else value


def _nothing() -> None: ...
