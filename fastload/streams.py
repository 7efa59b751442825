"""The order of work between streams, and the lifetime of the memory that crosses them.

A batch is prepared on a side stream and consumed on another. Three rules make that safe; this file is the only one
that names streams and events, and docs/streams.md tells the whole story.

1. The consumer's stream starts on a batch after the side stream has finished it: it waits for the batch's own event.
2. A batch's memory is not used again before every kernel that the consumer queued has read it: the allocator is told
   of the consumer's stream (``record_stream``).
3. Memory stays bounded however far the host runs ahead: before a new batch takes a place, the background thread waits
   until the device has passed the point at which the batch before it in that place was let go.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Protocol

import torch

__all__ = [
    "STREAMLESS",
    "AsyncReadback",
    "DoneFence",
    "Fence",
    "Recordable",
    "SideStream",
    "SyncStream",
    "Timestamp",
    "copy_beside",
    "current_stream_handle",
    "side_stream",
    "wait_for_current_stream",
]

# The CPU does its work at once, and Metal has one queue only: nothing can run beside the consumer there.
STREAMLESS = ("cpu", "mps")


class Fence(Protocol):
    """How far a stream has been given work."""

    def wait(self) -> None:
        """Block the calling thread until the device has done all of it."""

    def passed(self) -> bool:
        """Whether it has."""


class Recordable(Protocol):
    """What the allocator can be told of: a tensor, or a container such as ``TensorDict`` that passes it on."""

    def record_stream(self, stream: Any) -> object: ...


class SideStream:
    """The stream on which later batches are prepared while the consumer's stream works on this one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._backend: Any = torch.get_device_module(device)
        self._stream = self._backend.Stream(device)

    def adopt_thread(self) -> None:
        """From now on, all that the calling thread queues goes to this stream."""
        self._backend.set_stream(self._stream)

    def follow_consumer(self) -> None:
        """Begin after what the caller has queued so far, since a loader may read tensors computed there."""
        self._stream.wait_stream(self.consumer())

    def consumer(self) -> Any:
        """The stream on which the caller consumes."""
        return self._backend.current_stream(self.device)

    def on(self, consumer: Any) -> AbstractContextManager[Any]:
        """Queue what the caller does meanwhile on a consumer's stream."""
        stream: AbstractContextManager[Any] = self._backend.stream(consumer)
        return stream

    def prepared(self) -> EventFence:
        """How far this stream has been given work."""
        return EventFence(self.device, self._stream)

    def consumed(self, consumer: Any) -> EventFence:
        """How far a consumer's stream has been given work."""
        return EventFence(self.device, consumer)

    def hand_over(self, memory: Iterable[Recordable], ready: EventFence, consumer: Any) -> None:
        """Let a consumer's stream use ``memory`` as soon as this stream has come to ``ready``."""
        consumer.wait_event(ready.event)
        for block in memory:
            block.record_stream(consumer)


class EventFence:
    def __init__(self, device: torch.device, stream: Any) -> None:
        # A blocking event lets the waiting thread sleep; by default CUDA would spin on a core that the workers need.
        options = {"blocking": True} if device.type == "cuda" else {}
        self.event: Any = torch.get_device_module(device).Event(**options)
        self.event.record(stream)

    def wait(self) -> None:
        self.event.synchronize()

    def passed(self) -> bool:
        return bool(self.event.query())


class SyncStream:
    """The same calls where there is nothing to order: the work is done when the call returns."""

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

    def hand_over(self, memory: Iterable[Recordable], ready: DoneFence, consumer: None) -> None: ...


class DoneFence:
    """A point that no one needs to wait for."""

    def wait(self) -> None: ...

    def passed(self) -> bool:
        return True


def current_stream_handle(device: torch.device) -> int:
    """The caller's current CUDA stream, as libraries that are not PyTorch's take it."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def wait_for_current_stream(device: torch.device) -> None:
    """Block the calling thread until the device has done all that the caller's current stream was given."""
    torch.get_device_module(device).current_stream(device).synchronize()


def copy_beside(block: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A pinned block on the device, without a turn in the caller's current stream.

    There a copy of a few bytes would take the time of a small kernel, most of it waits before and behind. Nothing that
    the stream has still to do can matter to the copy, so it goes beside it, and the stream waits for its end only.
    """
    backend: Any = torch.get_device_module(device)
    here, current = backend.current_stream(device), backend.current_stream()
    beside, sending = _beside(here.device)
    # The context manager for this takes 23 µs more, a third of an upload.
    backend.set_stream(beside)
    try:
        sent = block.to(device, non_blocking=True)
    finally:
        backend.set_stream(here)
        backend.set_stream(current)  # of the current device, which may be another
    # Recorded by another thread meanwhile, it stands for more than is needed.
    sending.record(beside)
    here.wait_event(sending)
    sent.record_stream(here)
    return sent


@cache
def _beside(device: torch.device) -> tuple[Any, Any]:
    """One more stream of a device, and an event on it."""
    backend: Any = torch.get_device_module(device)
    return backend.Stream(device), backend.Event()


def side_stream(device: torch.device) -> SideStream | SyncStream:
    return SyncStream(device) if device.type in STREAMLESS else SideStream(device)


class AsyncReadback:
    """The values of a small tensor on the host, without a wait for more than what was queued before it.

    >>> AsyncReadback(torch.tensor([1.0, 0.0])).read()
    [1.0, 0.0]

    The copy goes to pinned memory behind the caller's current stream. ``at_once`` says that there is no stream, so
    that reading waits for nothing.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self.at_once = values.device.type in STREAMLESS
        self._values, self._point = values, DoneFence()  # type: torch.Tensor, Fence
        if not self.at_once:
            self._values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            backend: Any = torch.get_device_module(values.device)
            self._point = EventFence(values.device, backend.current_stream(values.device))

    def read(self) -> list[float]:
        """Wait until the device has come to this point, and return the values."""
        self._point.wait()
        return [float(value) for value in self._values.tolist()]


class Timestamp:
    """A point in time: of the device's current stream, or of the clock where there are no streams.

    >>> start, end = Timestamp(torch.device("cpu")), Timestamp(torch.device("cpu"))
    >>> start.seconds_to(end) >= 0
    True

    Placing a mark never waits; :meth:`seconds_to` waits until the device has passed the later one.
    """

    def __init__(self, device: torch.device) -> None:
        self._seconds = time.perf_counter()
        self._event: Any = None
        if device.type not in STREAMLESS:
            backend = torch.get_device_module(device)
            self._event = backend.Event(enable_timing=True)
            self._event.record(backend.current_stream(device))

    def seconds_to(self, later: Timestamp) -> float:
        if self._event is None:
            return later._seconds - self._seconds
        later._event.synchronize()
        return float(self._event.elapsed_time(later._event)) / 1000
