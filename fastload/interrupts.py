"""``off_interrupts``: while a GPU decodes, this process keeps off the cores that serve the GPUs' interrupts.

NVIDIA's JPEG engines interrupt the host about once for each file. One core serves them, and a thread that runs there is
slowed down to as little as a fifth of its speed: decoding, or the training thread. Linux counts that time as the
thread's own by default, so its scheduler sees no reason to move the thread. docs/notes/interrupts.md has the figures.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastload.environment import MOVES

__all__ = ["off_interrupts", "serving_cores"]

# The devices of NVIDIA's driver, each a folder that lists its interrupts; and the cores that serve each interrupt.
DEVICES = Path("/sys/bus/pci/drivers/nvidia")
INTERRUPTS = Path("/proc/irq")

LEAST = 4  # cores that a thread keeps, and at least half of those it had


@contextmanager
def off_interrupts(devices: Path = DEVICES, interrupts: Path = INTERRUPTS, least: int = LEAST) -> Iterator[None]:
    """A context in which no thread of this process runs on a core that serves a GPU's interrupts.

        with off_interrupts():
            decode()

    Contexts of several threads may overlap; after the last one each thread has its cores back, unless somebody else
    changed them. Threads and processes that start meanwhile inherit the cores, and keep them. A thread that would have
    fewer than ``least`` cores, or less than half of its own, is left alone. So are all where it is not known which
    cores serve the interrupts, or the environment says ``FASTLOAD_AFFINITY=off``.
    """
    if not (MOVES and hasattr(os, "sched_setaffinity")):
        yield
        return
    _moved.begin(serving_cores(devices, interrupts), least)
    try:
        yield
    finally:
        _moved.end()


def serving_cores(devices: Path = DEVICES, interrupts: Path = INTERRUPTS) -> set[int]:
    """The cores that serve the first interrupt of each GPU; its others are seldom used."""
    cores = set()
    for numbers in devices.glob("*/msi_irqs"):
        with suppress(OSError, ValueError):  # hidden, or not known
            first = min(int(each.name) for each in numbers.iterdir())
            cores |= cores_of((interrupts / str(first) / "effective_affinity_list").read_text())
    return cores


def cores_of(ranges: str) -> set[int]:
    """The cores of a list as Linux writes it.

    >>> sorted(cores_of("0-2,14"))
    [0, 1, 2, 14]
    """
    ends = [part.split("-") for part in ranges.strip().split(",")]
    return {core for part in ends for core in range(int(part[0]), int(part[-1]) + 1)}


def without(cores: set[int], serving: set[int], least: int = LEAST) -> set[int]:
    """The cores that a thread keeps.

    >>> without({0, 1, 2, 3, 4}, serving={4, 9})
    {0, 1, 2, 3}
    >>> without({0, 1}, serving={1})
    {0, 1}
    """
    kept = cores - serving
    return kept if len(kept) >= max(least, len(cores) / 2) else cores


class _Moved:
    """The threads that were moved, and how many contexts want them where they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contexts = 0
        self._cores: dict[int, tuple[set[int], set[int]]] = {}  # by thread: before, and since

    def begin(self, serving: set[int], least: int) -> None:
        with self._lock:
            self._contexts += 1
            if self._contexts > 1 or not serving:
                return
            for thread in map(int, os.listdir("/proc/self/task")):
                with suppress(OSError):  # it has ended, or may not be moved
                    before = os.sched_getaffinity(thread)
                    since = without(before, serving, least)
                    if since != before:
                        os.sched_setaffinity(thread, since)
                        self._cores[thread] = before, since

    def end(self) -> None:
        with self._lock:
            self._contexts -= 1
            if self._contexts:
                return
            for thread, (before, since) in self._cores.items():
                with suppress(OSError):
                    if os.sched_getaffinity(thread) == since:
                        os.sched_setaffinity(thread, before)
            self._cores = {}


_moved = _Moved()
if hasattr(os, "register_at_fork"):  # a fork has none of the threads, and no context
    os.register_at_fork(after_in_child=lambda: _Moved.__init__(_moved))
