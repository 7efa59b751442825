"""``Pace``: when in a training step a thread that is ahead of it begins with its next batch."""

from __future__ import annotations

import operator
import statistics
from collections import deque
from itertools import pairwise

from fastload.stats.batch_times import Span

__all__ = ["Pace"]

SEEN = 8  # batches, in each of which there must have been time to spare
MOST, LEAST = 1 / 2, 2 / 5  # of a step
KEPT, NONE = 1 / 16, 1 / 32  # of a step: what is left to spare, and what counts as nothing left


class Pace:
    """How long a thread that decodes rests before each batch, to work beside the second half of a training step.

    >>> pace = Pace()
    >>> step, work = 0.04, 0.01  # seconds; training takes the batch at each step's begin
    >>> for number in range(9):
    ...     rest = pace.rest(Span((number - 1) * step + work, number * step), now=number * step)
    >>> rest
    0.02

    Training takes a batch when a step begins, and then the thread is free. Decoding on the GPU slows training down less
    half a step later: with ResNet-50, by turns on two hosts, by 1.6 to 1.9% instead of 2.2 to 2.5%
    (docs/notes/jpeg-engines.md).

    The thread rests out of time that it has to spare: out of each of the last batches, that in which its finished batch
    waited for training. So there is no rest where training waits, nor where decoding takes most of a step.
    """

    def __init__(self) -> None:
        self._rests: deque[float] = deque([0.0], maxlen=SEEN)
        self._waits: deque[float] = deque(maxlen=SEEN)
        self._taken: deque[float] = deque(maxlen=SEEN + 1)

    def rest(self, waited: Span, now: float) -> float:
        """Seconds to rest from ``now`` on; 0.0 if there is no time to spare, or not known yet.

        ``waited`` is the time from the end of the last work to when what it made was taken. From then until now, the
        thread waited for files.
        """
        self._waits.append(waited.seconds)
        self._taken.append(waited.end)
        rest = max(0.0, self._rest() - (now - waited.end))
        self._rests.append(rest)
        return rest

    def _rest(self) -> float:
        """Seconds from when a batch was taken on."""
        if len(self._taken) <= SEEN:
            return 0.0
        step = statistics.median(end - begin for begin, end in pairwise(self._taken))
        if min(self._waits) < NONE * step:  # training waited, or nearly
            return 0.0
        spare = min(map(operator.add, self._rests, self._waits))
        rest = min(MOST * step, spare - KEPT * step)
        return rest if rest >= LEAST * step else 0.0
