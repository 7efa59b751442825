"""When to begin with a batch: amid a step of the consumer's, not as it begins."""

from __future__ import annotations

import time
from collections import deque

__all__ = ["Pace"]

RECENT = 3  # batches, of which the least idle time counts: a pause of the consumer's is no time to spare
LONGEST = 0.05  # seconds


class Pace:
    """Moves the background thread's work to the middle of the time that it has for it.

    A place for a batch becomes free when the device has finished a step. Work that begins there runs beside the start
    of the next step, always; and there it was found to cost training the most (docs/decoding.md). So the thread rests
    for half of the time in which it would be idle.

    >>> pace = Pace()
    >>> [round(pace.rest_after(idle, in_reserve=1), 3) for idle in (0.02, 0.02, 0.02, 0.01, 0.0)]
    [0.0, 0.0, 0.01, 0.01, 0.005]
    """

    def __init__(self) -> None:
        self._slacks = deque([0.0] * RECENT, maxlen=RECENT)
        self._rested = 0.0

    def rest(self, idle: float, in_reserve: int) -> None:
        """Sleep, after the thread has been ``idle`` for so many seconds, while batches ``in_reserve`` wait."""
        if (seconds := self.rest_after(idle, in_reserve)) > 0:
            time.sleep(seconds)

    def rest_after(self, idle: float, in_reserve: int) -> float:
        """How many seconds to rest; none if the consumer would wait for the batch."""
        self._slacks.append(self._rested + idle)
        self._rested = min(min(self._slacks) / 2, LONGEST) if in_reserve else 0.0
        return self._rested
