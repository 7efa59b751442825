"""``Stage``: a thread that does one kind of work on items, one item ahead of the next stage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from fastload.interrupts import InterruptCores
from fastload.prefetch.channel import Channel
from fastload.prefetch.item import Item
from fastload.prefetch.pace import Pace
from fastload.stats.batch_times import Span
from fastload.streams import SideStream, SyncStream

__all__ = ["Stage"]


class Stage(Iterator[Item]):
    """``items`` with ``work`` done on each, by a thread of its own whose stream is ``side``.

    It takes an item when the one before has been taken from it: one item at most is worked on or waits here. An error,
    of ``work`` or of ``items``, is raised where its item would have come. Before each item the thread leaves ``cores``,
    and rests as ``pace`` says.
    """

    def __init__(
        self,
        items: Iterator[Item],
        work: Callable[[Item], None],
        side: SideStream | SyncStream,
        cores: InterruptCores,
        name: str,
        pace: Pace | None = None,
    ) -> None:
        self._work = work
        self._side = side
        self._cores = cores
        self._pace = pace
        self._done: Channel[Item] = Channel()
        self._turns: SimpleQueue[None] = SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(items,), name=name, daemon=True)
        self._turns.put(None)
        self._thread.start()

    def __next__(self) -> Item:
        item = self._done.take()
        self._turns.put(None)
        return item

    def close(self) -> BaseException | None:
        """Let the thread end after the item that it works on, and wait for it; return an error that nobody took."""
        self._closing.set()
        self._turns.put(None)
        self._thread.join()
        return self._done.close()

    def _run(self, items: Iterator[Item]) -> None:
        try:
            self._side.adopt_thread()
            waited = self._wait_for_turn()
            while not self._closing.is_set() and (item := next(items, None)) is not None:
                if self._pace is not None:
                    self._closing.wait(self._pace.rest(waited, time.perf_counter()))
                self._cores.leave()
                item.through(self._work)
                self._done.put(item)
                waited = self._wait_for_turn()
            self._done.end()
        except BaseException as error:  # noqa: BLE001  (raised at its place, in the thread that takes the items)
            self._done.end(error)

    def _wait_for_turn(self) -> Span:
        """Wait until the item before has been taken."""
        begin = time.perf_counter()
        self._turns.get()
        return Span(begin, time.perf_counter())
