"""``StallClock``: the share of training in which the model had no work, for want of the next batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fastload.streams import Timestamp

__all__ = ["StallClock"]


class StallClock:
    """Time the wait for each batch, on the device's own stream.

    >>> clock, batches = StallClock(torch.device("cpu")), iter([1, 2, 3])
    >>> while True:
    ...     with clock.waiting():
    ...         batch = next(batches, None)
    ...     if batch is None:
    ...         break
    >>> 0 <= clock.share() <= 1
    True

    On a GPU a wait lasts from the end of the work queued before it until the batch is ready on the stream;
    where there are no streams, it is the time that the thread waited. Placing the marks never waits for the
    device. What comes before the arrival of the first batch, workers starting up, is left out.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waits: list[tuple[Timestamp, Timestamp]] = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Enter this around whatever gets the next batch, the last attempt, which finds none, included."""
        start = Timestamp(self._device)
        yield
        self._waits.append((start, Timestamp(self._device)))

    def seconds(self) -> float:
        """Return the time from the first batch's arrival to the end of the last wait, once the device is there."""
        if not self._waits:
            return 0.0
        return self._waits[0][1].seconds_to(self._waits[-1][1])

    def share(self) -> float:
        """Return the part of :meth:`seconds` spent waiting, from 0 to 1."""
        total = self.seconds()
        return sum(start.seconds_to(end) for start, end in self._waits[1:]) / total if total else 0.0
