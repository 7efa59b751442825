"""``WorkerProcesses``: what a ``DataLoader``'s worker processes use of the machine."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fastload.stats.batch_times import BatchTimes

if TYPE_CHECKING:
    import psutil

__all__ = ["WorkerProcesses", "WorkerUsage"]

ROUNDS = 3  # batches of each worker to judge by
PROCESSES = Path("/proc")  # Linux: a process's schedstat has its time on a core, and waiting for one, in ns
HELD_UP = 0.75  # of the waiting time, and of the batches that others may be ahead
SHORTEST, LONGEST = 0.1, 1.0  # seconds between two looks, which take some 50 µs a worker


@dataclass(frozen=True)
class WorkerUsage:
    """What worker processes used over ``seconds``.

    ``cpu`` has each worker's processor time, as a part of that time; ``wanted`` the same with the time for which it
    waited for a core, on Linux. Both are empty in the first tenth of a second. ``slowest`` is the number of the worker
    that all others wait for, None if there is no such.
    """

    workers: int
    seconds: float = 0.0
    cpu: Sequence[float] = ()
    wanted: Sequence[float] = ()
    slowest: int | None = None

    @property
    def busy(self) -> float | None:
        """The mean of ``wanted``: near 1 the workers compute whenever they have a core, near 0 they wait for data."""
        return sum(self.wanted) / len(self.wanted) if self.wanted else None


class Use(NamedTuple):
    """Seconds of a core that a process has used, and has wanted."""

    cpu: float
    wanted: float


class Look(NamedTuple):
    at: float
    uses: list[Use]


class WorkerProcesses:
    """The workers behind an iterator over a ``DataLoader``; none if it has none, or hides them."""

    def __init__(self, batches: Any) -> None:
        workers: list[BaseProcess] = getattr(batches, "_workers", None) or []
        # Weakly: what is measured outlasts the pass, and this iterator's workers must not.
        self._batches = weakref.ref(batches) if workers else None
        self._processes = _processes_of(workers)
        self._ahead: int = getattr(batches, "_prefetch_factor", None) or 2
        self._looks: list[Look] = []  # the first and the last
        self._next_look = 0.0

    def look(self, *, at_once: bool = False) -> None:
        """Read the workers' processor times, if the last look is long enough ago or it must be ``at_once``."""
        now = time.perf_counter()
        if not self._processes or (self._looks and not at_once and now < self._next_look):
            return
        try:
            look = Look(now, [_use(process) for process in self._processes])
        except GoneError:
            return
        self._looks = [*self._looks[:1], look]
        self._next_look = now + min(LONGEST, max(SHORTEST, now - self._looks[0].at))

    def overtaken(self) -> int:
        """How many batches have come from other workers before those that were asked for earlier."""
        tasks = getattr(self._batches and self._batches(), "_task_info", {})
        return sum(len(task) > 1 for task in list(tasks.values()))

    def usage(self, batches: Sequence[BatchTimes]) -> WorkerUsage | None:
        """What they used between the first look and the last, and who held up ``batches``; None without workers."""
        count = len(self._processes)
        if not count:
            return None
        slowest = slowest_worker(batches, count, self._ahead)
        if len(self._looks) < len(("first", "last")):
            return WorkerUsage(count, slowest=slowest)
        first, last = self._looks
        seconds = last.at - first.at
        uses = list(zip(first.uses, last.uses, strict=True))
        cpu = [(end.cpu - begin.cpu) / seconds for begin, end in uses]
        return WorkerUsage(count, seconds, cpu, [(end.wanted - begin.wanted) / seconds for begin, end in uses], slowest)

    def close(self) -> None:
        """Let go of the iterator."""
        self._batches = None


def slowest_worker(batches: Sequence[BatchTimes], workers: int, ahead: int) -> int | None:
    """The worker whose batches are waited for while all others have done what they may; None if there is no such.

    A ``DataLoader`` takes a batch from each worker in turn, so batch ``i`` of a pass is of worker ``i % workers``.
    Workers that are equally fast finish together: then too one is waited for, but the others have not done all of the
    ``ahead`` batches that they may be ahead.
    """
    loads = [[batch for batch in batches if batch.number % workers == each] for each in range(workers)]
    if workers == 1 or min(map(len, loads)) < ROUNDS:
        return None
    seconds = [sum(batch.host["load"].seconds for batch in each if "load" in batch.host) for each in loads]
    slowest = max(range(workers), key=seconds.__getitem__)
    overtaken = sum(batch.overtaken for batch in loads[slowest]) / len(loads[slowest])
    is_alone = seconds[slowest] > HELD_UP * sum(seconds)
    return slowest if is_alone and overtaken > HELD_UP * ahead * (workers - 1) else None


class GoneError(Exception):
    """A worker has ended."""


def _processes_of(workers: Sequence[BaseProcess]) -> list[psutil.Process]:
    if not workers:
        return []
    import psutil  # noqa: PLC0415  (takes 20 ms to import)

    found = []
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
            found.append(psutil.Process(worker.pid))
    return found


def _use(process: psutil.Process) -> Use:
    import psutil  # noqa: PLC0415

    delays = PROCESSES / str(process.pid) / "schedstat"
    try:
        times = process.cpu_times()
        cpu = float(times.user + times.system)
        if not delays.exists():
            return Use(cpu, cpu)
        running, waiting, *_ = map(int, delays.read_text().split())
    except (psutil.Error, OSError) as error:
        raise GoneError from error
    return Use(cpu, (running + waiting) / 1e9)
