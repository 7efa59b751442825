"""Whose turn it is: one actor at a time goes on, and a string of bytes decides which.

The actors are the host's threads, which are real threads that run real code, and the device's streams. A thread runs
until it calls :meth:`Schedule.pause`, as every simulated call does; so a run is the same whenever its bytes are.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count
from queue import Empty
from typing import Any, Protocol


class Actor(Protocol):
    def is_ready(self) -> bool: ...


class Stream(Actor, Protocol):
    def is_idle(self) -> bool:
        """Whether nothing is in its queue."""

    def step(self) -> None:
        """Do the first thing in the queue."""


class Abandoned(BaseException):
    """Ends a thread that waits in a run that has failed."""


class Host:
    """A thread of the host, as the schedule sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.until: Callable[[], object] = _always  # what it waits for
        self.is_timed = False  # it waits for so long only
        self.is_ended = False
        self._turn = threading.Lock()
        self._turn.acquire()

    def is_ready(self) -> bool:
        return bool(self.until())

    def take_turn(self) -> None:
        """Wait for it."""
        self._turn.acquire()

    def give_turn(self) -> None:
        if self._turn.locked():
            self._turn.release()


class Schedule:
    """Hands the turn on: to the first actor that is ready, in an order that changes when a byte says so.

    Args:
        choices: one byte a turn. While they are 0, and after the last of them, the order stays: the thread that runs
            goes on until it must wait, then the next, and the device works only when all threads wait for it.
        restless: how many of the 256 bytes, counted from the top, bring another actor to the front.
        timeouts: whether a wait that has a limit may come to it as soon as its thread is brought to the front; else
            it does when nothing else can go on.
        files: a thread may lose its turn before any line of these.
    """

    def __init__(
        self,
        choices: bytes = b"",
        *,
        restless: int = 128,
        timeouts: bool = False,
        files: Iterable[str] = (),
        surroundings: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.order: list[Host | Stream] = []
        self.turns = 0
        self.has_timed_out = False
        self.surroundings = surroundings
        self.running = self.consumer = Host("consumer")
        self.order.append(self.consumer)
        self.stuck: str | None = None
        self._choices = iter(choices)
        self._restless = restless
        self._timeouts = timeouts
        self._files = frozenset(files)
        self._threads: list[threading.Thread] = []
        self._traced_before = sys.gettrace()

    def pause(self, until: Callable[[], object] | None = None, *, timed: bool = False) -> None:
        """Let others have the turn; come back when ``until`` is true, or, if ``timed``, at any time."""
        if self.stuck is not None:
            if until is not None and not until():
                raise Abandoned
            return
        host = self.running
        host.until, host.is_timed = until or _always, timed
        chosen = self._next()
        if chosen is not host:
            self.running = chosen
            chosen.give_turn()
            host.take_turn()
        host.until, host.is_timed = _always, False
        if self.stuck is not None and until is not None and not until():
            raise Abandoned

    def _next(self) -> Host:
        """The thread whose turn it is, after the steps of the streams whose turn came before."""
        while True:
            self.turns += 1
            self._reorder(next(self._choices, 0))
            actor = next((actor for actor in self.order if actor.is_ready()), None) or self._timed_out()
            if actor is None:
                self._give_up()
                return self.consumer
            if isinstance(actor, Host):
                return actor
            actor.step()

    def _reorder(self, byte: int) -> None:
        above = byte - (256 - self._restless)
        if above < 0:
            return
        actor = self.order.pop(above % len(self.order))
        self.order.insert(0, actor)
        if self._timeouts and isinstance(actor, Host) and actor.is_timed and not actor.is_ready():
            self._time_out(actor)

    def _timed_out(self) -> Host | None:
        waiting = next((host for host in self._hosts() if host.is_timed), None)
        if waiting is not None:
            self._time_out(waiting)
        return waiting

    def _time_out(self, host: Host) -> None:
        host.until = _always
        self.has_timed_out = True

    def _give_up(self) -> None:
        """Nothing can go on: end all threads."""
        hosts = self._hosts()
        self.stuck = f"all of {sorted(host.name for host in hosts)} wait, and no stream can go on"
        for host in hosts:
            host.give_turn()

    def start(self, host: Host, work: Callable[[], object]) -> None:
        self.order.append(host)
        thread = threading.Thread(target=self._run, args=(host, [work]), name="adversary", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, host: Host, work: list[Callable[[], object]]) -> None:
        host.take_turn()
        try:
            with self.surroundings():
                self._trace()
                work.pop()()  # when the thread has ended, nothing is to keep what it worked on
        except Abandoned:
            pass
        finally:
            sys.settrace(None)
            host.is_ended = True
            self.order.remove(host)
            if self.stuck is None:
                self.running = self._next()
                self.running.give_turn()

    def finish(self) -> None:
        """Wait until all other threads have ended, and the streams have done all their work."""
        self.pause(lambda: self._hosts() == [self.consumer] and all(stream.is_idle() for stream in self.streams()))

    def streams(self) -> list[Stream]:
        return [actor for actor in self.order if not isinstance(actor, Host)]

    def _hosts(self) -> list[Host]:
        return [actor for actor in self.order if isinstance(actor, Host)]

    def __enter__(self) -> Schedule:
        self._trace()
        return self

    def __exit__(self, *_: object) -> None:
        if self._files:
            sys.settrace(self._traced_before)
        if self.stuck is None and self._hosts() != [self.consumer]:
            self._give_up()
        for thread in self._threads:
            thread.join(10)

    def _trace(self) -> None:
        if self._files:
            sys.settrace(self._on_call)

    def _on_call(self, frame: Any, event: str, argument: object) -> Any:  # noqa: ARG002
        return self._on_line if frame.f_code.co_filename in self._files else None

    def _on_line(self, frame: Any, event: str, argument: object) -> Any:  # noqa: ARG002
        if event == "line":
            self.pause()
        return self._on_line


def _always() -> bool:
    return True


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this thread, and those that it starts, on one core where the system can.

    They take turns, so no other core is of use, and it takes far longer to wake one than a turn does.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[os.getpid() % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


class Threading:
    """What a module takes from ``threading`` and ``queue``, under a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._running: dict[Host, Thread] = {}
        self._numbers = count()

    def Thread(self, **options: Any) -> Thread:  # noqa: N802
        return Thread(self._schedule, self._running, next(self._numbers), **options)

    def Lock(self) -> Lock:  # noqa: N802
        return Lock(self._schedule)

    def Flag(self) -> Flag:  # noqa: N802
        return Flag(self._schedule)

    def SimpleQueue(self) -> SimpleQueue:  # noqa: N802
        return SimpleQueue(self._schedule)

    def current_thread(self) -> Thread | None:
        return self._running.get(self._schedule.running)


class Thread:
    def __init__(
        self,
        schedule: Schedule,
        running: dict[Host, Thread],
        number: int,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        name: str = "thread",
        daemon: bool = False,  # noqa: ARG002
    ) -> None:
        self.host = Host(name)
        self._schedule = schedule
        self._work: list[Callable[[], object]] = [partial(target, *args)]
        self._running = running
        self._number = number

    def __hash__(self) -> int:  # sets of threads have the same order in each run
        return self._number

    def start(self) -> None:
        self._running[self.host] = self
        self._schedule.start(self.host, self._run)
        self._schedule.pause()

    def _run(self) -> None:
        try:
            self._work.pop()()
        finally:
            del self._running[self.host]

    def join(self, timeout: float | None = None) -> None:
        self._schedule.pause(lambda: self.host.is_ended, timed=timeout is not None)

    def is_alive(self) -> bool:
        return not self.host.is_ended


class Flag:
    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._schedule.pause()

    def wait(self, timeout: float | None = None) -> bool:
        self._schedule.pause(lambda: self._is_set, timed=timeout is not None)
        return self._is_set


class Lock:
    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._is_held = False

    def __enter__(self) -> None:
        self._schedule.pause(lambda: not self._is_held)
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False


class SimpleQueue:
    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._schedule.pause()

    def get(self, timeout: float | None = None) -> Any:
        """With a timeout: what is there now."""
        self._schedule.pause(None if timeout is not None else lambda: self._items)
        if not self._items:
            raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items
