"""``InterruptCores``: the cores that serve the GPUs' interrupts, and how threads in a hurry leave them.

NVIDIA's JPEG engines interrupt the host about once for each file. One core serves them, and a thread that runs there is
slowed down to as little as a fifth of its speed: decoding, or the training thread. Linux counts that time as the
thread's own by default, so its scheduler sees no reason to move the thread. docs/notes/interrupts.md has the figures.

No thread is kept off these cores for good. What it starts would inherit that, and the threads of a parallel sum, which
are as many as there are cores, would wait for each other.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path

from fastload.environment import MOVES

__all__ = ["InterruptCores", "interrupt_cores", "serving_cores"]

# The devices of NVIDIA's driver, each a folder that lists its interrupts; and the cores that serve each interrupt.
DEVICES = Path("/sys/bus/pci/drivers/nvidia")
INTERRUPTS = Path("/proc/irq")
THREADS = Path("/proc/self/task")

LEAST = 4  # cores that a thread must have beside these: with fewer, it would only meet other threads
PERIOD = 0.5  # seconds between looks for backward's threads, the first of which starts with the first step
SERVING_PERIOD = 10.0  # seconds after which an interrupt may have moved: irqbalance's
NEW = 8  # threads whose names one look reads: while training keeps the interpreter busy, each file takes milliseconds
BACKWARD = b"pt_autograd_"  # the names of PyTorch's threads for backward begin so
STATE, CORE = 0, 36  # fields of a thread's stat, counted from behind its name
EVERY_CORE = frozenset(range(1024))


class InterruptCores:
    """The cores that serve the GPUs' interrupts.

        cores = InterruptCores()
        for batch in batches:
            cores.look()
            cores.leave()

    They are none where the system does not tell, or the environment says ``FASTLOAD_AFFINITY=off``.
    """

    def __init__(self, devices: Path = DEVICES, interrupts: Path = INTERRUPTS, least: int = LEAST) -> None:
        self._folders = devices, interrupts
        self._least = least
        self._serving: set[int] = set()
        self._next_look = self._next_serving = float("-inf")
        self._threads: dict[str, bool] = {}  # whether backward runs on it
        self._looking = threading.Lock()

    def look(self) -> None:
        """Find out which cores they are, and move backward's threads off them, unless that was done just now."""
        now = time.monotonic()
        if not MOVES or sched_getcpu is None or now < self._next_look or not self._looking.acquire(blocking=False):
            return
        try:
            self._next_look = now + PERIOD
            self._look(now)
        finally:
            self._looking.release()

    def _look(self, now: float) -> None:
        if now >= self._next_serving:
            self._next_serving = now + SERVING_PERIOD
            self._serving = serving_cores(*self._folders)
        if self._serving:
            for thread in self._backward_threads():
                if _core_while_running(thread) in self._serving:
                    self._move(int(thread))

    def leave(self) -> None:
        """Move the calling thread to another core if it is on one of these. It may come back: call this each batch."""
        if self._serving and sched_getcpu is not None and sched_getcpu() in self._serving:
            self._move(0)

    def _backward_threads(self) -> list[str]:
        with suppress(OSError):
            now, known = os.listdir(THREADS), self._threads
            self._threads = {thread: known[thread] for thread in now if thread in known}
            newest_first = (thread for thread in reversed(now) if thread not in known)
            self._threads |= {thread: _is_backward(thread) for thread in islice(newest_first, NEW)}
        return [thread for thread, is_backward in self._threads.items() if is_backward]

    def _move(self, thread: int) -> None:
        with suppress(OSError):  # it has ended, or may not be moved
            before = os.sched_getaffinity(thread)
            if len(others := before - self._serving) >= self._least:
                try:
                    os.sched_setaffinity(thread, others)  # it moves at once
                    _give_back(thread, before)
                except BaseException:  # a signal's, before the cores have been given back
                    _give_back(thread, before)
                    raise


@cache
def interrupt_cores() -> InterruptCores:
    """Those of this machine, for all passes of the process: they share what is known of threads."""
    return InterruptCores()


def serving_cores(devices: Path = DEVICES, interrupts: Path = INTERRUPTS) -> set[int]:
    """The cores that serve the first interrupt of each GPU, that of the lowest number; the others are seldom used."""
    cores = set()
    with suppress(OSError):
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
    return {core for first, *last in ends for core in range(int(first), int(last[0] if last else first) + 1)}


def _give_back(thread: int, cores: set[int]) -> None:
    # All cores first: a thread that nobody had bound is not bound then, and follows its control group's cores when they
    # change. Linux remembers what was asked for, and tells only what is left of it within the group.
    with suppress(OSError):
        os.sched_setaffinity(thread, EVERY_CORE)
    if os.sched_getaffinity(thread) != cores:
        os.sched_setaffinity(thread, cores)


def _is_backward(thread: str) -> bool:
    with suppress(OSError):
        return (THREADS / thread / "comm").read_bytes().startswith(BACKWARD)  # any bytes, cut after 15
    return False


def _core_while_running(thread: str) -> int | None:
    """The core on which a thread of this process runs; None while it sleeps, and cannot be moved."""
    with suppress(OSError, ValueError, IndexError):
        fields = (THREADS / thread / "stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[CORE]) if fields[STATE] == b"R" else None
    return None


def _found_sched_getcpu() -> Callable[[], int] | None:
    with suppress(AttributeError, OSError, TypeError):  # systems other than Linux
        found: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
        return found
    return None


sched_getcpu = _found_sched_getcpu() if hasattr(os, "sched_setaffinity") else None
