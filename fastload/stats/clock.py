"""``LoaderClock``: measures the batches of a loader on their way, without making anyone wait."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fastload.environment import MEASURES
from fastload.stats.batch_times import Anchor, BatchTimes, Span, Stamping
from fastload.stats.lines import LineSampler
from fastload.stats.record import Record
from fastload.stats.stats import Stats, window_of
from fastload.stats.workers import WorkerProcesses, WorkerUsage
from fastload.streams import Timestamp

__all__ = ["Asked", "LoaderClock", "PassClock"]

RECENT = 100  # batches
ANCHOR_AGE = 30.0  # seconds after which the two clocks are compared again: they drift by some µs a second


class LoaderClock:
    """What was measured of all passes over a loader.

    It refers to its passes, and they to its ``Record`` only: in a cycle, the stream on which a pass takes timestamps
    would be taken until the collector runs, and there are few.
    """

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.lines = LineSampler()
        self.listeners: list[Callable[[], None]] = []
        """Called in the consumer's thread with each batch that it gets."""
        self._record = Record()
        self._passes: list[PassClock] = []  # the last two

    def begin_pass(self, batches: Any, side: Stamping) -> PassClock:
        """The clock of a pass over ``batches``, the wrapped loader's iterator."""
        self._poll()
        one_pass = PassClock(self._record, WorkerProcesses(batches), side, self.lines, self.listeners)
        self._passes = [*self._passes[-1:], one_pass]
        return one_pass

    def stats(self, rank: int = 0) -> Stats:
        """What is known now; batches that the device has not come to yet are left out."""
        self._poll()
        kept, total = self._record.kept_and_total()
        recent = kept[-RECENT:]
        return Stats(
            recent=window_of(recent),
            total=total,
            startup=tuple(self._record.startup),
            files=dict(self.files),
            workers=self._usage(recent),
            lines=self.lines.shares(),
            rank=rank,
        )

    @property
    def batches(self) -> list[BatchTimes]:
        """The last batches that the device has passed, of the last pass of which there are two.

        If there is no such pass, those of the last.
        """
        kept = self._record.kept()
        begins = [0, *(number for number, batch in enumerate(kept) if number and batch.step is None), len(kept)]
        passes = [kept[begin:end] for begin, end in pairwise(begins)]
        return next((batches for batches in reversed(passes) if len(batches) > 1), passes[-1])

    @property
    def images(self) -> str:
        """What the images came as: ``"files"``, or their dtype; empty if there are none, or none was seen yet."""
        kept = self._record.kept()
        return kept[-1].images if kept else ""

    def _usage(self, recent: Sequence[BatchTimes]) -> WorkerUsage | None:
        """Of the last pass; of the one before if that has just begun."""
        usages = [usage for each in self._passes if (usage := each.workers.usage(recent)) is not None]
        return next((usage for usage in reversed(usages) if usage.cpu), usages[-1] if usages else None)

    def _poll(self) -> None:
        for each in self._passes:
            each.poll()


class Asked(NamedTuple):
    """The moment at which the consumer asked for a batch, and how many were ready then."""

    begin: float
    cpu: float
    stamp: Timestamp
    ready: int


class PassClock:
    """Measures one pass, whose batches are numbered as they are pulled.

    Threads of fastload's call :meth:`pulling`, :meth:`keep_time`, :meth:`poll` and :meth:`end`; the consumer's calls
    :meth:`asked` and :meth:`given`.
    """

    def __init__(
        self,
        record: Record,
        workers: WorkerProcesses,
        side: Stamping,
        lines: LineSampler,
        listeners: Sequence[Callable[[], None]],
    ) -> None:
        self.workers = workers
        self.lines = lines if MEASURES else None
        self._record = record
        self._side = side
        self._listeners = listeners
        self._begun = time.perf_counter()
        self._process_time = time.process_time()
        self._number = 0
        self._anchor: Anchor | None = None
        self._pending: deque[BatchTimes] = deque()
        self._last: Span | None = None  # the stall before the last batch
        self._polling = threading.Lock()

    def pulling(self) -> BatchTimes:
        """The times of the batch that is pulled now."""
        times = BatchTimes(self._number, self._side.device)
        self._number += 1
        return times

    def keep_time(self) -> None:
        """Compare the device's clock with the host's, which waits for the side stream; look at the workers."""
        if not MEASURES:
            return
        if self._anchor is None or time.perf_counter() - self._anchor.seconds > ANCHOR_AGE:
            self._anchor = Anchor(self._side)
        self.workers.look()
        self.poll()

    def asked(self, consumer: Any, ready: int) -> Asked | None:
        """Note that the consumer asks for a batch, of which so many are ready; None if nothing is measured."""
        if self.lines is None:
            return None
        self.lines.thread = threading.get_ident()
        return Asked(time.perf_counter(), time.thread_time(), self._side.timestamp(consumer), ready)

    def given(self, times: BatchTimes, asked: Asked | None, consumer: Any) -> None:
        """Note that it has the batch."""
        if asked is None:
            return
        times.given(asked.stamp, self._side.timestamp(consumer))
        times.ready = asked.ready
        times.host["next"] = Span(asked.begin, time.perf_counter(), time.thread_time() - asked.cpu)
        now = time.process_time()
        times.step_cpu, self._process_time = now - self._process_time, now
        self._pending.append(times)
        for listener in self._listeners:
            listener()

    def poll(self) -> None:
        """Settle the batches that the device has passed."""
        if not self._polling.acquire(blocking=False):
            return  # another thread does
        try:
            while self._pending and self._anchor is not None and self._pending[0].is_passed():
                self._settle(self._pending.popleft(), self._anchor)
        finally:
            self._polling.release()

    def end(self) -> None:
        """Look at the workers for the last time."""
        self.workers.look(at_once=True)
        self.workers.close()

    def _settle(self, batch: BatchTimes, anchor: Anchor) -> None:
        batch.settle(anchor)
        stall = batch.device["stall"]
        if self._last is not None:
            batch.step = stall.end - self._last.end
        startup = stall.end - self._begun if self._last is None else None
        self._last = stall
        self._record.add(batch, startup)
