"""``SlotPool``: how many batches may be on the device, and when each of them may be replaced by another."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from fastload.prefetch.static import BatchSpec, FixedBuffer, Static
from fastload.stats.batch_times import Span
from fastload.stats.lines import LineSampler
from fastload.streams import DoneFence, Fence, SideStream, SyncStream

__all__ = ["Slot", "SlotPool"]

# The consumer may hold two batches beside those that wait for it: the one it works on, and the one before, which a
# `for` loop drops only after the next has arrived.
IN_HAND = 2

NO_TIME = Span(0.0, 0.0)


@dataclass(eq=False)
class Slot:
    """Room for one batch on the device, free once the device has passed ``fence``; with ``static``, fixed memory."""

    fence: Fence
    buffer: FixedBuffer | None
    consumer: Any = None  # the stream that got the batch
    waited: Span = NO_TIME  # when it was waited for


class SlotPool:
    """The slots of a loader: ``depth`` for batches that wait for the consumer, and those of the batches in its hand.

    Attributes:
        had_room: whether the last slot was free when it was asked for: the device had room for more than it was given.
    """

    def __init__(self, depth: int, static: Static | None = None) -> None:
        spec = BatchSpec()
        self._slots = [Slot(DoneFence(), FixedBuffer(static, spec) if static else None) for _ in range(depth + IN_HAND)]
        self._in_hand: deque[Slot] = deque()
        self._last_wait = 0.0
        self.reopen()

    def acquire(self, lines: LineSampler | None = None) -> Slot | None:
        """Wait for a free slot, and for the device to be done with the batch before; None if the pass was closed.

        Meanwhile ``lines`` may take a look at what keeps the consumer.
        """
        begin = time.perf_counter()
        is_there = not self._free.empty()
        slot = self._free_slot(lines)
        if slot is None or self.closed:
            return None
        self.had_room = is_there and slot.fence.passed()
        slot.fence.wait()
        slot.waited = Span(begin, time.perf_counter())
        self._last_wait = slot.waited.seconds
        return slot

    def put_back(self, slot: Slot) -> None:
        """Free a slot that no batch has come to."""
        self._free.put(slot)

    def hand_out(self, slot: Slot, consumer: Any) -> None:
        """Note that the batch of a slot goes to a consumer's stream."""
        slot.consumer = consumer
        self._in_hand.append(slot)

    def release(self, side: SideStream | SyncStream) -> None:
        """Free the slot of the batch before last: the consumer asks for its next, so it has dropped that one."""
        if len(self._in_hand) == IN_HAND:
            slot = self._in_hand.popleft()
            if slot.buffer is not None:
                with side.on(slot.consumer):
                    slot.buffer.poison()
            slot.fence = side.consumed(slot.consumer)
            try:
                if slot.buffer is not None:
                    slot.buffer.refuse()  # while nobody else can have it
            finally:
                self._free.put(slot)

    def _free_slot(self, lines: LineSampler | None) -> Slot | None:
        if lines is not None and lines.is_due():
            try:
                return self._free.get(timeout=lines.delay(self._last_wait))
            except Empty:
                lines.look()
        return self._free.get()

    def close(self) -> None:
        """Let no more slots be acquired."""
        self.closed = True
        self._free.put(None)  # wakes a thread that waits for a slot

    def reopen(self) -> None:
        """Free the slots of batches that never came to the consumer."""
        self._free: SimpleQueue[Slot | None] = SimpleQueue()
        for slot in self._slots:
            if slot not in self._in_hand:
                self._free.put(slot)
        self.closed, self.had_room = False, True
