"""``SlotPool``: the places for batches on the device, each filled again when the device is done with what was there."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from fastload.prefetch.static import BatchSpec, Slot, Static
from fastload.streams import DoneFence, Fence, SideStream, SyncStream

__all__ = ["Place", "SlotPool"]

# What the consumer may hold beside the batches that wait for it: the one it works on, and the one before, which a `for`
# loop lets go of only after the next has arrived.
IN_HAND = 2


@dataclass(eq=False)
class Place:
    """Where a batch may be, free when the device has come to ``point``; with memory of its own if that is fixed."""

    point: Fence
    slot: Slot | None
    consumer: Any = None  # the stream that got the batch


class SlotPool:
    """Places for batches on the device: ``depth`` that wait for the consumer, and those in its hand."""

    def __init__(self, depth: int, static: Static | None = None) -> None:
        form = BatchSpec()
        self._places = [Place(DoneFence(), Slot(static, form) if static else None) for _ in range(depth + IN_HAND)]
        self._in_hand: deque[Place] = deque()
        self.reopen()

    def enter(self) -> Place | None:
        """Wait for a place, and for the device to be done with what was there; None if the pass was closed."""
        place = self._free.get()
        if place is None or self.closed:
            return None
        place.point.wait()
        return place

    def give_back(self, place: Place) -> None:
        """Of the batch that was to be there nothing is left."""
        self._free.put(place)

    def receive(self, place: Place, consumer: Any) -> None:
        """The batch there is handed to a consumer's stream."""
        place.consumer = consumer
        self._in_hand.append(place)

    def leave(self, side: SideStream | SyncStream) -> None:
        """The consumer comes for its next batch, so it has let go of the one before the last."""
        if len(self._in_hand) == IN_HAND:
            place = self._in_hand.popleft()
            if place.slot is not None:
                with side.on(place.consumer):
                    place.slot.poison()
            place.point = side.consumed(place.consumer)
            self._free.put(place)
            if place.slot is not None:
                place.slot.refuse()

    def close(self) -> None:
        self.closed = True
        self._free.put(None)  # wakes a thread that waits for a place

    def reopen(self) -> None:
        """Make the places of batches that never came to the consumer free again."""
        self._free: SimpleQueue[Place | None] = SimpleQueue()
        for place in self._places:
            if place not in self._in_hand:
                self._free.put(place)
        self.closed = False
