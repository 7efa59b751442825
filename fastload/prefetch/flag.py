"""``Flag``: is set once, and threads wait for it."""

from __future__ import annotations

import time
from contextlib import suppress
from queue import Empty, SimpleQueue

__all__ = ["Flag"]


class Flag:
    """``threading.Event`` for a thread in which a signal handler may raise, such as the main thread.

    >>> flag = Flag()
    >>> flag.wait(0.001)
    False
    >>> flag.set()
    >>> flag.wait()
    True

    Where a handler raises just as Python's own begins to wait, it releases a lock that is free: its RuntimeError would
    take the place of the handler's exception.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._bell: SimpleQueue[None] = SimpleQueue()  # rung after the flag is set; who hears it rings for the next

    def set(self) -> None:
        self._is_set = True
        self._bell.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, at most ``timeout`` seconds, and return whether it is."""
        until = None if timeout is None else time.monotonic() + timeout
        with suppress(Empty):
            while not self._is_set:
                try:
                    self._bell.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
                finally:
                    if self._is_set:
                        self._bell.put(None)
        return self._is_set
