"""``Channel``: items from one thread to another."""

from __future__ import annotations

from collections import deque
from queue import SimpleQueue
from typing import Generic, TypeVar

__all__ = ["Channel"]

T = TypeVar("T")


class Channel(Generic[T]):
    """A queue whose first item can be waited for without being taken, so that an interrupt of the wait loses nothing.

    >>> channel = Channel()
    >>> channel.put("a")
    >>> channel.first(), channel.take()
    ('a', 'a')

    ``queue.SimpleQueue.get`` has taken its item when a signal handler raises just after it.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()  # rung after an item has come; it may be rung for nothing

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._bell.empty():
            self._bell.put(None)

    def first(self) -> T:
        """Wait for the first item, and leave it here."""
        while not self._items:
            self._bell.get()
        return self._items[0]

    def take(self) -> T:
        """Wait for the first item, and take it."""
        self.first()
        return self._items.popleft()

    def clear(self) -> None:
        """Let go of all items."""
        self._items.clear()
