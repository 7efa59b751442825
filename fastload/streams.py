"""The order of work between streams, and the lifetime of memory that crosses them.

A batch is prepared on a side stream and consumed on another stream. Three rules make that safe. docs/streams.md
explains them; this is the only file that names streams and events.

1. Order: the consumer's stream waits for the batch's own event, recorded when the side stream has finished it.
2. Lifetime: the allocator is told of the consumer's stream (``record_stream``). So it gives a batch's memory to another
   tensor only after every kernel that the consumer queued has read it.
3. Bound: before a new batch takes a slot, the background thread waits until the device has passed the point at which
   the consumer dropped the batch before it. So memory is bounded however far the host runs ahead.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import torch

__all__ = [
    "STREAMLESS",
    "AsyncReadback",
    "DoneFence",
    "Fence",
    "Recordable",
    "ReusedCopy",
    "SideStream",
    "SyncStream",
    "Timestamp",
    "copy_beside",
    "fence_on_current_stream",
    "side_stream",
    "wait_for_current_stream",
]

# Devices without side streams: the CPU works synchronously, and Metal has one queue.
STREAMLESS = ("cpu", "mps")


class Fence(Protocol):
    """A point in the queue of a stream, behind all work queued so far."""

    def wait(self) -> None:
        """Block the calling thread until the device has passed this point."""

    def passed(self) -> bool:
        """Whether the device has passed this point."""


class Recordable(Protocol):
    """Memory that the allocator can be told a stream uses: a tensor, or a container such as ``TensorDict``."""

    def record_stream(self, stream: Any) -> object: ...


class SideStream:
    """The stream on which later batches are prepared while the consumer's stream works on this one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._backend: Any = torch.get_device_module(device)
        self._stream = _take_stream(self._backend, device)
        weakref.finalize(self, _spare[device].put, self._stream).atexit = False

    def adopt_thread(self) -> None:
        """Make this the current stream of the calling thread."""
        self._backend.set_stream(self._stream)

    def follow_consumer(self) -> None:
        """Wait, on the device, for what the caller has queued: a loader may read tensors that are computed there."""
        self._stream.wait_stream(self.consumer())

    def consumer(self) -> Any:
        """The caller's current stream, which is the consumer's."""
        return self._backend.current_stream(self.device)

    def on(self, consumer: Any) -> AbstractContextManager[Any]:
        """A context in which the caller queues its work on a consumer's stream."""
        stream: AbstractContextManager[Any] = self._backend.stream(consumer)
        return stream

    def prepared(self) -> EventFence:
        """A fence behind all work queued on this stream."""
        return EventFence(self._stream)

    def consumed(self, consumer: Any) -> EventFence:
        """A fence behind all work queued on a consumer's stream."""
        return EventFence(consumer)

    def timestamp(self, consumer: Any = None) -> Timestamp:
        """A point in time behind all work queued on this stream, or on a consumer's."""
        return Timestamp(self.device, consumer or self._stream)

    def hand_over(self, memory: Iterable[Recordable], ready: EventFence, consumer: Any = None) -> None:
        """Let a consumer's stream, or this one, use ``memory`` once the stream that made it has passed ``ready``."""
        user = consumer or self._stream
        user.wait_event(ready.event)
        for block in memory:
            block.record_stream(user)

    def capture(self, graph: torch.cuda.CUDAGraph, pool: Any) -> AbstractContextManager[Any]:
        """A context in which the caller's work is captured as a CUDA graph, on this stream.

        Other threads, such as a loader's, may go on with what a capture would not allow in this one.
        """
        context: AbstractContextManager[Any] = torch.cuda.graph(
            graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"
        )
        return context


class RecordedEvent:
    """An event behind all work queued on a stream so far. When this is dropped, the event may be recorded again.

    To make an event and to destroy it takes longer than to record it, and the driver's lock, which training needs.
    A stream that was told to wait for it waits for the point at which it was then.
    """

    __slots__ = ("_spare", "event")

    def __init__(self, stream: Any, *, is_timed: bool) -> None:
        spare = _spare_events[type(stream), stream.device_index, is_timed]
        try:
            event = spare.pop()
        except IndexError:
            kind = stream.device.type
            # With a blocking event the waiting thread sleeps; CUDA's default spins on a core that the workers need.
            options = {"enable_timing": True} if is_timed else {"blocking": True} if kind == "cuda" else {}
            event = torch.get_device_module(kind).Event(**options)
        event.record(stream)
        self.event, self._spare = event, spare

    def __del__(self) -> None:
        if hasattr(self, "_spare"):  # it was recorded
            self._spare.append(self.event)


# By kind of stream, device, and whether they take the time: an event is of one device for good.
MOST_SPARE = 64  # of each; a loader has a dozen for each batch on its way
_spare_events: defaultdict[tuple[type, int, bool], deque[Any]] = defaultdict(lambda: deque(maxlen=MOST_SPARE))
# The end of the interpreter must not destroy them. It would end a forked child with an error: CUDA does not run there.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_spare_events))


class EventFence(RecordedEvent):
    """A fence that is an event."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream, is_timed=False)

    def wait(self) -> None:
        self.event.synchronize()

    def passed(self) -> bool:
        return bool(self.event.query())


class SyncStream:
    """The interface of :class:`SideStream` for devices without streams, where work is done when a call returns."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def adopt_thread(self) -> None: ...

    def follow_consumer(self) -> None: ...

    def consumer(self) -> None: ...

    def on(self, consumer: None) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def prepared(self) -> DoneFence:
        return DoneFence()

    def consumed(self, consumer: None) -> DoneFence:  # noqa: ARG002
        return DoneFence()

    def timestamp(self, consumer: None = None) -> Timestamp:  # noqa: ARG002
        return Timestamp(self.device)

    def hand_over(self, memory: Iterable[Recordable], ready: DoneFence, consumer: None = None) -> None: ...


class DoneFence:
    """A fence that is passed already."""

    def wait(self) -> None: ...

    def passed(self) -> bool:
        return True


# PyTorch's streams come from a pool of 32, by turns. If one were taken for each pass, it would sooner or later be the
# one on which a step is being captured, and end the capture. The allocator keeps memory for each stream that was ever
# used, too. So fastload's streams are used again, and no two of them are the same while there are enough.
POOL = 32
_spare: defaultdict[torch.device, SimpleQueue[Any]] = defaultdict(SimpleQueue)  # streams whose owner is gone
_ours: set[tuple[torch.device, int]] = set()


def _take_stream(backend: Any, device: torch.device) -> Any:
    """A stream that nothing else of fastload's uses."""
    try:
        return _spare[device].get_nowait()
    except Empty:
        return _new_stream(backend.Stream, device)


def _new_stream(make: Any, device: torch.device) -> Any:
    for _ in range(POOL):
        stream = make(device)
        if (device, stream.stream_id) not in _ours:
            _ours.add((device, stream.stream_id))
            return stream
    return make(device)  # all are taken, and the next one after each round of the pool is shared


def wait_for_current_stream(device: torch.device) -> int:
    """Block the calling thread until the device has done all work queued on its current stream.

    Returns the CUDA stream's handle, for libraries other than PyTorch; 0 on other devices.
    """
    stream = torch.get_device_module(device).current_stream(device)
    stream.synchronize()
    return int(getattr(stream, "cuda_stream", 0))


def fence_on_current_stream(device: torch.device) -> Fence:
    """A fence behind all work that the calling thread has queued on its current stream."""
    return EventFence(torch.get_device_module(device).current_stream(device))


def copy_beside(block: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A pinned block copied to the device on a stream of its own; the caller's current stream waits for the copy.

    In the caller's stream, a copy of a few bytes takes as long as a small kernel, mostly waiting. The copy does not
    depend on the stream's earlier work, so it runs beside that.
    """
    here = torch.accelerator.current_stream(device)
    beside, sending = _beside(here.device)
    _set_stream(beside)
    try:
        sent = block.to(device, non_blocking=True)
    finally:
        _set_stream(here)
    # If another thread records the event meanwhile, it covers more work than is needed.
    sending.record(beside)
    here.wait_event(sending)
    sent.record_stream(here)
    return sent


class ReusedCopy:
    """A block of pinned memory and one on the device, to which it is copied again and again, as by ``copy_beside``.

    One thread uses it. Before it writes to ``pinned`` again, :meth:`is_sent` must be true. What reads ``on_device`` is
    queued on the stream that was current at :meth:`send`, and noted by :meth:`note_use` before the next one.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._device = device
        here = torch.accelerator.current_stream(device)
        self._here = here
        self._beside, _ = _beside(here.device)
        self._sent, self._used = torch.Event(here.device), torch.Event(here.device)
        self.pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        _set_stream(self._beside)
        try:
            self.on_device = torch.empty(size, dtype=torch.uint8, device=here.device)
        finally:
            _set_stream(here)
        self.on_device.record_stream(here)

    def send(self) -> None:
        """Copy what is in ``pinned``, once the device has done the uses noted; the current stream waits for it."""
        here = torch.accelerator.current_stream(self._device)
        if here != self._here:
            self.on_device.record_stream(here)
            self._here = here
        self._beside.wait_event(self._used)
        _set_stream(self._beside)
        try:
            self.on_device.copy_(self.pinned, non_blocking=True)
        finally:
            _set_stream(here)
        self._sent.record(self._beside)
        here.wait_event(self._sent)

    def is_sent(self) -> bool:
        """Whether the device has read ``pinned``."""
        return bool(self._sent.query())

    def note_use(self) -> None:
        """Note that what reads the copy has been queued."""
        self._used.record(self._here)


def _set_stream(stream: torch.Stream) -> None:
    """Make a stream current, and leave the current device; the context manager for this takes 23 µs more."""
    device = torch.accelerator.current_device_index()
    torch.accelerator.set_stream(stream)
    if stream.device.index != device:
        torch.accelerator.set_device_index(device)


@cache
def _beside(device: torch.device) -> tuple[torch.Stream, torch.Event]:
    """A stream for small copies to a device, and an event on it."""
    return _new_stream(torch.Stream, device), torch.Event(device)


def side_stream(device: torch.device) -> SideStream | SyncStream:
    return SyncStream(device) if device.type in STREAMLESS else SideStream(device)


class AsyncReadback:
    """The values of a small tensor on the host; reading them waits only for the work queued before.

    >>> AsyncReadback(torch.tensor([1.0, 0.0])).read()
    [1.0, 0.0]

    The copy to pinned memory is queued on the caller's current stream. ``at_once``: the device has no stream, so that
    reading never waits.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self.at_once = values.device.type in STREAMLESS
        self._values, self._point = values, DoneFence()  # type: torch.Tensor, Fence
        if not self.at_once:
            self._values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            backend: Any = torch.get_device_module(values.device)
            self._point = EventFence(backend.current_stream(values.device))

    def read(self) -> list[float]:
        """Wait until the copy is done, and return the values."""
        self._point.wait()
        return [float(value) for value in self._values.tolist()]


class Timestamp:
    """A point in time: in the queue of a device's stream, or on the host's clock where there are no streams.

    >>> start, end = Timestamp(torch.device("cpu")), Timestamp(torch.device("cpu"))
    >>> start.seconds_to(end) >= 0
    True

    Making one never waits; :meth:`seconds_to` waits unless the device has passed the later one. ``stream`` is the
    caller's current one by default.
    """

    __slots__ = ("_recorded", "seconds")

    def __init__(self, device: torch.device, stream: Any = None) -> None:
        self._recorded: RecordedEvent | None = None
        if device.type not in STREAMLESS:
            stream = torch.get_device_module(device).current_stream(device) if stream is None else stream
            self._recorded = RecordedEvent(stream, is_timed=True)
        self.seconds = time.perf_counter()
        """When it was made, on the host's clock."""

    def wait(self) -> None:
        """Block the calling thread until the device has passed this point."""
        if self._recorded is not None:
            self._recorded.event.synchronize()

    def passed(self) -> bool:
        """Whether the device has passed this point."""
        return self._recorded is None or bool(self._recorded.event.query())

    def seconds_to(self, later: Timestamp) -> float:
        """Seconds between the two, on the device's clock if it has one."""
        if self._recorded is None or later._recorded is None:
            return later.seconds - self.seconds
        try:
            milliseconds = self._recorded.event.elapsed_time(later._recorded.event)
        except RuntimeError:  # it has not passed the later one; to ask first would take the driver as long again
            later.wait()
            milliseconds = self._recorded.event.elapsed_time(later._recorded.event)
        return float(milliseconds) / 1000
