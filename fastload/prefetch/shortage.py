"""``Shortage``: whether training is short of batches, so that a second thread is worth its cost."""

from __future__ import annotations

__all__ = ["Shortage"]

MANY = 8  # batches


class Shortage:
    """From when a batch came late until the thread that makes them has time to spare again.

    >>> shortage = Shortage()
    >>> for _ in range(8):
    ...     shortage.note(is_late=False)
    >>> shortage.lasts(is_pressed=True)
    False
    >>> shortage.note(is_late=True)
    >>> shortage.lasts(is_pressed=True), shortage.lasts(is_pressed=False)
    (True, False)

    A batch is late if training waited for it and the device had nothing else left to do. A thread may be pressed
    although none is late: where a batch takes nearly a step. Then help would only take processor time from training.

    At the begin of a pass, while the queue fills, batches are late for other reasons. So one is no sign of a shortage
    before many have come in time; many late ones in a row are.

    Once training is short, help stays until there is time to spare: the queue is full then, and the next slow moment of
    the host costs nothing.
    """

    def __init__(self) -> None:
        self._late = 0  # batches, the last of them one after the other
        self._timely = 0  # in the whole pass
        self._lasts = False

    def note(self, *, is_late: bool) -> None:
        """Take note of the next batch."""
        self._late = self._late + 1 if is_late else 0
        self._timely += not is_late

    def lasts(self, *, is_pressed: bool) -> bool:
        """Whether training is short of batches; ``is_pressed``: the thread that makes them has no time to spare."""
        begins = self._late >= (1 if self._timely >= MANY else MANY)
        self._lasts = is_pressed and (self._lasts or begins)
        return self._lasts
