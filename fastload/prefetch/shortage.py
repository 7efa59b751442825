"""``Shortage``: whether training is short of batches, so that a second thread is worth its cost."""

from __future__ import annotations

__all__ = ["Shortage"]

MANY = 8  # batches


class Shortage:
    """From when many batches, one after the other, came late until the thread that makes them has time to spare again.

    >>> shortage = Shortage()
    >>> for _ in range(8):
    ...     shortage.note(is_late=True)
    >>> shortage.lasts(is_busy=True), shortage.lasts(is_busy=False)
    (True, False)

    A batch is late if training waited for it and the device had nothing else left to do. A thread may be busy although
    none is late: at the begin of a pass, and after a slow moment, it fills the queue. Then help would only take
    processor time from training, and a second set of the decoder's buffers, for which training stops. It does so, too,
    where a slow host keeps both from their work, and batches are late now and then.

    Once training is short, help stays until the queue is full: a step slightly shorter than decoding would otherwise
    wait for most batches.
    """

    def __init__(self) -> None:
        self._late = 0  # batches, the last of them one after the other
        self._lasts = False

    def note(self, *, is_late: bool) -> None:
        """Take note of the next batch."""
        self._late = self._late + 1 if is_late else 0

    def lasts(self, *, is_busy: bool) -> bool:
        """Whether training is short of batches; ``is_busy``: the thread that makes them has no time to spare."""
        self._lasts = is_busy and (self._lasts or self._late >= MANY)
        return self._lasts
