"""``Channel``: items from one thread to another, then their end or the error that ended them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, NoReturn, TypeVar

__all__ = ["Channel", "End"]

T = TypeVar("T")


@dataclass(eq=False)
class End:
    """The last entry of a channel: the items are complete, or an error ended them, or the channel was closed."""

    error: BaseException | None = None
    is_complete: bool = False

    def raised(self) -> NoReturn:
        """Raise the error, once, or StopIteration."""
        try:
            raise StopIteration if self.error is None else self.error
        finally:
            self.error = None  # its traceback keeps this frame, which would keep it


class Channel(Generic[T]):
    """A queue of items that ends. Its first entry can be waited for without being taken.

    >>> channel = Channel()
    >>> channel.put("a")
    >>> channel.end()
    >>> channel.first(), channel.take()
    ('a', 'a')
    >>> channel.take()
    Traceback (most recent call last):
    StopIteration

    An interrupt of the wait therefore loses no item: ``queue.SimpleQueue.get`` has taken its item when a signal handler
    raises just after it.
    """

    def __init__(self) -> None:
        self._entries: deque[T | End] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()  # rung after an entry has come, and sometimes once more
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, item: T) -> None:
        self._append(item)

    def end(self, error: BaseException | None = None) -> None:
        """Let no more come: all items are there, or ``error`` stands for the next."""
        if isinstance(error, StopIteration):  # it would end a loop as if nothing had happened
            cause, error = error, RuntimeError("the loader or a transform raised StopIteration")
            error.__cause__ = cause
        self._append(End(error, is_complete=error is None))

    def close(self) -> BaseException | None:
        """Drop all items, those that still come too, and wake who waits for one; return the error that nobody took.

        Kept here, an error would keep the frames of the thread that it ended, and so this channel.
        """
        dropped, self._is_closed = self._entries, True
        self._append(End())
        return next((entry.error for entry in dropped if isinstance(entry, End)), None)

    def first(self) -> T | End:
        """Wait for the first entry, and leave it here."""
        while not self._entries:
            self._bell.get()
        return self._entries[0]

    def take(self) -> T:
        """Wait for the first item, and take it.

        Raises:
            StopIteration: there are no more.
            BaseException: the error that ended them.
        """
        entry = self.first()
        if isinstance(entry, End):
            entry.raised()
        self._entries.popleft()
        return entry

    def _append(self, entry: T | End) -> None:
        self._entries.append(entry)
        if self._is_closed:
            self._entries = deque([End()])
        if self._bell.empty():
            self._bell.put(None)
