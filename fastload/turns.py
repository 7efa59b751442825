"""``Turns``: how many may have something at a time, and more of them only while nobody is in a hurry."""

from __future__ import annotations

from queue import Empty, SimpleQueue

__all__ = ["Turns"]


class Turns:
    """So many turns, and twice as many whenever somebody has waited for one in vain.

    >>> turns = Turns(1, patience=0.01)
    >>> turns.take()
    >>> turns.take()  # after a hundredth of a second
    >>> turns.give_back()

    Args:
        count: of them at first, at least one.
        patience: seconds that one waits until there are more.
    """

    def __init__(self, count: int, *, patience: float) -> None:
        self._patience = patience
        self._count = 0
        self._free: SimpleQueue[None] = SimpleQueue()  # to which a finalizer may return something at any moment
        self._add(count)

    def take(self) -> None:
        while True:
            try:
                return self._free.get(timeout=self._patience)
            except Empty:
                self._add(self._count)

    def give_back(self) -> None:
        self._free.put(None)

    def _add(self, count: int) -> None:
        self._count += count
        for _ in range(count):
            self._free.put(None)
