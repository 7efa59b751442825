"""``Stage``: a thread that does one kind of work on items, one item ahead of the next stage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from fastload.interrupts import InterruptCores
from fastload.prefetch.channel import Channel
from fastload.prefetch.item import Item
from fastload.streams import SideStream, SyncStream

__all__ = ["Stage"]


class Stage(Iterator[Item]):
    """``items`` with ``work`` done on each, by a thread of its own whose stream is ``side``.

    It takes an item when the one before has been taken from it: one item at most is worked on or waits here. An error,
    of ``work`` or of ``items``, is raised where its item would have come. Before each item the thread leaves ``cores``.
    """

    def __init__(
        self,
        items: Iterator[Item],
        work: Callable[[Item], None],
        side: SideStream | SyncStream,
        cores: InterruptCores,
        name: str,
    ) -> None:
        self._work = work
        self._side = side
        self._cores = cores
        self._done: Channel[Item] = Channel()
        self._turns: SimpleQueue[None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, args=(items,), name=name, daemon=True)
        self._turns.put(None)
        self._thread.start()

    def __next__(self) -> Item:
        item = self._done.take()
        self._turns.put(None)
        return item

    def close(self) -> BaseException | None:
        """Let the thread end after the item that it works on, and wait for it; return an error that nobody took."""
        self._closed = True
        self._turns.put(None)
        self._thread.join()
        return self._done.close()

    def _run(self, items: Iterator[Item]) -> None:
        try:
            self._side.adopt_thread()
            for item in self._in_turn(items):
                self._cores.leave()
                item.through(self._work)
                self._done.put(item)
            self._done.end()
        except BaseException as error:  # noqa: BLE001  (raised at its place, in the thread that takes the items)
            self._done.end(error)

    def _in_turn(self, items: Iterator[Item]) -> Iterator[Item]:
        """Each item when the one before has been taken."""
        self._turns.get()
        while not self._closed and (item := next(items, None)) is not None:
            yield item
            self._turns.get()
