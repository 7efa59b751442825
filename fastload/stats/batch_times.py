"""``BatchTimes``: when one batch passed each stage, on the host's clock and on the device's."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch.autograd import profiler

from fastload.environment import MEASURES
from fastload.streams import Timestamp

__all__ = ["DEVICE_STAGES", "HOST_STAGES", "Anchor", "BatchTimes", "Span", "Stamping"]

HOST_STAGES = {
    "load": "waiting for the wrapped loader; with num_workers=0, loading",
    "pin": "copying files to pinned memory",
    "decode": "queueing the decoding of files",
    "slot": "waiting until the device has room for the batch",
    "prepare": "copying to pinned memory, and queueing copies and transforms",
    "next": "the training thread in next()",
}
"""What the host does with a batch, in this order: by threads of fastload's, and at last by the consumer's."""

DEVICE_STAGES = {
    "decode": ("decode begins", "decode ends"),
    "copy": ("copy begins", "copy ends"),
    "transform": ("transform begins", "transform ends"),
    "stall": ("asked", "given"),
}
"""What the device does with a batch, each between two marks; in a stall the consumer's stream waits for the batch."""


class Span(NamedTuple):
    """From ``begin`` to ``end``, in seconds on the host's clock; ``cpu`` is the thread's processor time within."""

    begin: float
    end: float
    cpu: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Stamping(Protocol):
    """A stream that takes timestamps, as ``SideStream`` and ``SyncStream`` do."""

    device: torch.device

    def timestamp(self, consumer: Any = None) -> Timestamp: ...


class Anchor:
    """A point in time that is known on both clocks. Making one waits for the work queued on ``side``."""

    def __init__(self, side: Stamping) -> None:
        self._stamp = side.timestamp()
        self._stamp.wait()
        self.seconds = time.perf_counter()

    def on_host(self, stamp: Timestamp) -> float:
        """When the device passed ``stamp``, on the host's clock."""
        return self.seconds + self._stamp.seconds_to(stamp)


class BatchTimes:
    """When batch ``number`` of a pass went through the stages.

    >>> from fastload.streams import SyncStream
    >>> times, side = BatchTimes(0, torch.device("cpu")), SyncStream(torch.device("cpu"))
    >>> anchor = Anchor(side)
    >>> with times.stage("prepare"):
    ...     times.mark("copy begins", side)
    ...     times.mark("copy ends", side)
    >>> times.settle(anchor)
    >>> times.host["prepare"].seconds >= times.device["copy"].seconds >= 0
    True

    ``device`` is filled by :meth:`settle`, once the device has passed the marks. ``images`` is what the images came as:
    ``"files"``, or their dtype; empty if there are none. ``ready`` counts the batches that waited for the consumer when
    it asked for this one; ``overtaken`` those that other workers had finished before, though they were asked for later.
    ``lead`` is by how many seconds the host was ahead of the device then. ``step`` has the seconds from the arrival of
    the batch before to that of this one, None for the first of a pass; ``step_cpu`` the process's processor time from
    one ``next()`` to the next.
    """

    __slots__ = (
        "_device", "_marks", "bytes", "device", "host", "images", "lead", "number", "overtaken", "ready", "samples",
        "step", "step_cpu",
    )  # fmt: skip

    def __init__(self, number: int, device: torch.device) -> None:
        self.number = number
        self.samples = 0
        self.bytes = 0
        self.images = ""
        self.ready = 0
        self.overtaken = 0
        self.lead = 0.0
        self.step: float | None = None
        self.step_cpu = 0.0
        self.host: dict[str, Span] = {}
        self.device: dict[str, Span] = {}
        self._device = device
        self._marks: dict[str, Timestamp] = {}

    @property
    def stall(self) -> float:
        """For how many seconds the consumer's stream waited for this batch."""
        return self.device["stall"].seconds if "stall" in self.device else 0.0

    def stage(self, name: str) -> AbstractContextManager[None]:
        """A context for what the calling thread does; profilers show it as ``fastload.name``."""
        return StageContext(self.host, name, self._device) if MEASURES else NOTHING

    def mark(self, name: str, side: Stamping) -> None:
        """Let the device note when it has done what is queued on ``side``."""
        if MEASURES:
            self._marks[name] = side.timestamp()

    def given(self, asked: Timestamp, given: Timestamp) -> None:
        """Note when the consumer's stream came to need this batch, and when it had it."""
        self._marks |= {"asked": asked, "given": given}

    def is_passed(self) -> bool:
        """Whether the device has passed all marks, of which the last is where the consumer's stream had the batch."""
        return self._marks["given"].passed()

    def settle(self, anchor: Anchor) -> None:
        """Turn the marks, which the device has passed, into spans on the host's clock."""
        marks, self._marks = self._marks, {}
        at = {name: anchor.on_host(mark) for name, mark in marks.items()}
        for name, (first, last) in DEVICE_STAGES.items():
            if first in at and last in at:
                self.device[name] = Span(at[first], max(at[first], at[last]))
        if "asked" in at:
            self.lead = max(0.0, at["asked"] - marks["asked"].seconds)


NOTHING = nullcontext()
nvtx: Any = torch.cuda.nvtx if torch.version.cuda is not None else None  # ROCm's build has stubs that raise


class StageContext:
    """Measures what a thread does within it; a class, since a generator's context manager takes three times as long."""

    __slots__ = ("_begin", "_cpu", "_device", "_name", "_range", "_spans")

    def __init__(self, spans: dict[str, Span], name: str, device: torch.device) -> None:
        self._spans, self._name, self._device = spans, name, device

    def __enter__(self) -> None:
        self._range: Any = None
        if profiler._is_profiler_enabled:  # noqa: SLF001  (without one, the public record_function takes 5 µs)
            self._range = torch.profiler.record_function(f"fastload.{self._name}")
            self._range.__enter__()
        if nvtx is not None and self._device.type == "cuda":
            nvtx.range_push(f"fastload.{self._name}")
        self._begin, self._cpu = time.perf_counter(), time.thread_time()

    def __exit__(self, *error: object) -> None:
        self._spans[self._name] = Span(self._begin, time.perf_counter(), time.thread_time() - self._cpu)
        if nvtx is not None and self._device.type == "cuda":
            nvtx.range_pop()
        if self._range is not None:
            self._range.__exit__(*error)
