"""``Record``: what was measured of all batches of a loader; the last of them one by one, sums of the others."""

from __future__ import annotations

import threading
from collections import deque

from fastload.stats.batch_times import BatchTimes
from fastload.stats.stats import Period, window_of
from fastload.stats.totals import Totals

__all__ = ["Record"]

KEPT = 1000  # batches whose times are kept


class Record:
    """The batches that the device has passed, in this order; several threads add to it, and read it."""

    def __init__(self) -> None:
        self.startup: list[float] = []
        """Of each pass, the seconds until its first batch came."""
        self._kept: deque[BatchTimes] = deque(maxlen=KEPT)
        self._totals = Totals()
        self._lock = threading.Lock()

    def add(self, batch: BatchTimes, startup: float | None) -> None:
        """Count a batch that the device has passed; the first of a pass with the time until it came."""
        with self._lock:
            self._kept.append(batch)
            if startup is None:
                self._totals.add(batch)
            else:
                self.startup.append(startup)

    def kept(self) -> list[BatchTimes]:
        """The batches whose times are kept."""
        with self._lock:
            return list(self._kept)

    def kept_and_total(self) -> tuple[list[BatchTimes], Period]:
        """The batches whose times are kept, and figures of all."""
        with self._lock:
            kept = list(self._kept)
            return kept, self._totals.over(window_of(kept))
