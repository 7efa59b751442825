"""``StallClock``: the part of training time in which the device waits for the next batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fastload.streams import Timestamp

__all__ = ["StallClock"]


class StallClock:
    """Measures the wait for each batch, on the device's current stream.

    >>> clock, batches = StallClock(torch.device("cpu")), iter([1, 2, 3])
    >>> while True:
    ...     with clock.waiting():
    ...         batch = next(batches, None)
    ...     if batch is None:
    ...         break
    >>> 0 <= clock.share() <= 1
    True

    On a GPU a wait lasts from the end of the work queued before it until the batch is ready on the stream. On a device
    without streams it is the time for which the thread waited. Measuring never makes the host wait for the device. The
    time before the first batch arrives, in which workers start, is left out.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waits: list[tuple[Timestamp, Timestamp]] = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context for the call that gets the next batch; also for the last call, which finds none."""
        start = Timestamp(self._device)
        yield
        self._waits.append((start, Timestamp(self._device)))

    def seconds(self) -> float:
        """Return the seconds from the first batch's arrival to the end of the last wait; waits for the device."""
        if not self._waits:
            return 0.0
        return self._waits[0][1].seconds_to(self._waits[-1][1])

    def share(self) -> float:
        """Return the part of :meth:`seconds` spent waiting, from 0 to 1; waits for the device."""
        total = self.seconds()
        return sum(start.seconds_to(end) for start, end in self._waits[1:]) / total if total else 0.0
