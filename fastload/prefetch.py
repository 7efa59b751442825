"""One pass over a loader, prepared ahead of its consumer by a background thread, in bounded memory."""

from __future__ import annotations

import contextlib
import threading
import traceback
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import torch

from fastload.preparation import Arrival, Preparation
from fastload.streams import NoStream, Passed, Point, SideStream
from fastload.transfer import move_own

__all__ = ["Pass", "Room"]

# What the consumer may hold beside the batches that wait for it: the one it works on, and the one before, which a `for`
# loop lets go of only after the next has arrived.
IN_HAND = 2

# How long to wait for a thread that is inside the wrapped loader, which nobody can interrupt, in seconds.
GRACE = 0.8


class Pass(Iterator[Any]):
    """One pass over the loader: the consumer's end of what a background thread prepares."""

    def __init__(self, batches: Iterator[Any], prepare: Preparation, room: Room, spare: list[Room]) -> None:
        self._side = prepare.side
        self._room = room
        self._arrivals: SimpleQueue[Arrival | _End] = SimpleQueue()
        self.thread = threading.Thread(
            target=_feed, args=(batches, prepare, room, self._arrivals), name="fastload-prefetch", daemon=True
        )
        self.thread.start()
        # The thread does not know of the pass: letting go of the pass ends it, and so does the interpreter's end.
        self.close = weakref.finalize(self, _close, self.thread, self._arrivals, room, spare)

    def __next__(self) -> Any:
        if not self.close.alive:
            raise StopIteration
        self._room.leave(self._side)
        arrival = self._arrivals.get()
        if isinstance(arrival, _End):
            self.close()
            raise _visible(arrival.error)
        self._room.in_hand += 1
        if arrival.remark:
            warnings.warn(arrival.remark, UserWarning, stacklevel=2)
        sent = arrival.sent
        self._side.hand_over(sent.memory(), arrival.ready)
        return move_own(sent.batch, self._side.device) if sent.has_own else sent.batch


def _feed(batches: Iterator[Any], prepare: Preparation, room: Room, arrivals: SimpleQueue[Arrival | _End]) -> None:
    """The background thread: wait for room, pull, prepare; until the end, an error, or the pass is closed."""
    try:
        prepare.side.adopt_thread()
        with torch.no_grad():
            while room.enter():
                batch = next(batches, _End())
                if isinstance(batch, _End):
                    arrivals.put(batch)
                    return
                arrivals.put(prepare(batch))
                del batch  # pinned memory, not to be held while the loader takes its time
    except BaseException as error:  # noqa: BLE001  (whatever it is, it is the consumer's to see)
        _forget(batches, error)
        arrivals.put(_End(error))
    finally:
        del batches  # the error's traceback keeps this frame too


def _forget(batches: Iterator[Any], error: BaseException | None) -> None:
    """Let an error that is kept not keep the loader's workers: empty the frames of its traceback that run the loader.

    The dataset's own frames keep their variables for a debugger.
    """
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            method = getattr(type(batches), frame.f_code.co_name, None)
            if getattr(method, "__code__", None) is frame.f_code:
                frame.clear()
        error = error.__cause__ or error.__context__


def _close(thread: threading.Thread, arrivals: SimpleQueue[Arrival | _End], room: Room, spare: list[Room]) -> None:
    room.close()
    if thread is not threading.current_thread():  # where the garbage collector may have found the pass
        thread.join(GRACE)
    _drain(arrivals)
    arrivals.put(_End())  # for a consumer that waits in another thread
    if not thread.is_alive():
        room.reopen()
        spare.append(room)


def _visible(error: BaseException | None) -> BaseException:
    """What ``next`` raises; a StopIteration out of a transform would end the loop as if nothing had happened."""
    if isinstance(error, StopIteration):
        stray = RuntimeError("the loader or a transform raised StopIteration")
        stray.__cause__ = error
        return stray
    return error or StopIteration()


class Room:
    """Places for batches on the device: ``depth`` that wait for the consumer, and those in its hand."""

    def __init__(self, depth: int) -> None:
        self.capacity = depth + IN_HAND
        self.in_hand = 0
        self._closed = False
        self._free: SimpleQueue[Point] = SimpleQueue()
        self.reopen()

    def enter(self) -> bool:
        """Wait for a place, and for the device to be done with what was there; False if the pass was closed."""
        self._free.get().wait()
        return not self._closed

    def leave(self, side: SideStream | NoStream) -> None:
        """The consumer comes for its next batch, so it has let go of the one before the last."""
        if self.in_hand == IN_HAND:
            self.in_hand -= 1
            self._free.put(side.consumed())

    def close(self) -> None:
        self._closed = True
        self._free.put(Passed())  # wakes a thread that waits for a place

    def reopen(self) -> None:
        """Make the places of batches that never came to the consumer free again."""
        points = _drain(self._free)[: self.capacity - self.in_hand]
        for point in points + [Passed()] * (self.capacity - self.in_hand - len(points)):
            self._free.put(point)
        self._closed = False


@dataclass
class _End:
    """Nothing comes after this; ``error`` is why, unless the loader had simply come to its end."""

    error: BaseException | None = None


def _drain(queue: SimpleQueue[Any]) -> list[Any]:
    items = []
    with contextlib.suppress(Empty):
        while True:
            items.append(queue.get_nowait())
    return items
