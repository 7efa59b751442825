"""``Fetcher``: pulls the batches of one pass from the loader, and decodes their files ahead of the rest of the work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from fastload.prefetch.decode_ahead import Decoded, DecodeStage
from fastload.prefetch.slots import Place, SlotPool
from fastload.resume.position import Position, Progress
from fastload.structure.tree import Path
from fastload.transfer.transfer import Pinned

__all__ = ["Fetched", "Fetcher"]

T = TypeVar("T")

PINNED_AHEAD = 2  # batches whose files wait for the decoder: one that is being pinned, one that is
DECODED_AHEAD = 1  # batches whose images wait for a place, or are being decoded
_NOTHING = object()


@dataclass
class Fetched:
    """A batch as the loader yielded it, where the loader was then, and the place that the batch is to take.

    ``decoded`` has those of its files that are images by now, by the path to them.
    """

    batch: Any
    position: Position
    place: Place
    decoded: dict[Path, Decoded] = field(default_factory=dict)


@dataclass
class _Waiting(Generic[T]):
    """A batch that has no place yet, and what its files are by now: pinned, or decoded."""

    batch: Any
    position: Position
    files: dict[Path, T]


class Fetcher:
    """The batches of one pass, each as soon as there is a place for it; until the end, or the pass is closed.

    A batch is pulled when it has its place. With a ``decoder``, threads of their own are ahead of that: one pulls and
    pins, one decodes, so that images are there when a place becomes free. To drive a decoder takes the host longer than
    the rest of the work on a batch does (docs/decoding.md), and none is to wait for another.
    """

    def __init__(self, batches: Iterator[Any], progress: Progress, room: SlotPool, decoder: DecodeStage | None) -> None:
        self.batches = batches
        self.progress = progress
        self.room = room
        self._decoder = decoder
        self._threads: list[threading.Thread] = []
        self._to_pin, self._to_decode = _turns(PINNED_AHEAD), _turns(DECODED_AHEAD)

    def __iter__(self) -> Iterator[Fetched]:
        if self._decoder is None:
            return self._pulled()
        pinned = self._ahead(self._pinned(self._decoder), "fastload-pin")
        return self._placed(self._ahead(self._decoded(self._decoder, pinned), "fastload-decode"))

    def close(self) -> None:
        """Wait for the threads, and let go of the loader, which an error's traceback would keep otherwise."""
        self.room.close()
        for turns in (self._to_pin, self._to_decode):
            turns.put(None)
        for thread in self._threads:
            thread.join()
        if self._decoder is not None:
            self._decoder.close()
        del self.batches

    def _pulled(self) -> Iterator[Fetched]:
        while place := self.room.enter():
            if (batch := next(self.batches, _NOTHING)) is _NOTHING:
                return
            fetched = Fetched(batch, self.progress.fetched(), place)
            del batch  # while the next is waited for, the last is not to be kept
            yield fetched
            del fetched

    def _pinned(self, decoder: DecodeStage) -> Iterator[_Waiting[Pinned]]:
        decoder.side.adopt_thread()
        while True:
            self._to_pin.get()
            if self.room.closed or (batch := next(self.batches, _NOTHING)) is _NOTHING:
                return
            waiting = _Waiting(batch, self.progress.fetched(), decoder.pin(batch))
            del batch
            yield waiting
            del waiting

    def _decoded(self, decoder: DecodeStage, pinned: Iterator[_Waiting[Pinned]]) -> Iterator[_Waiting[Decoded]]:
        decoder.side.adopt_thread()
        for came in pinned:
            self._to_decode.get()
            if self.room.closed:
                return
            waiting = _Waiting(came.batch, came.position, decoder(came.files))
            del came
            self._to_pin.put(None)
            yield waiting
            del waiting

    def _placed(self, decoded: Iterator[_Waiting[Decoded]]) -> Iterator[Fetched]:
        for came in decoded:
            if (place := self.room.enter()) is None:
                return
            fetched = Fetched(came.batch, came.position, place, came.files)
            del came
            self._to_decode.put(None)
            yield fetched
            del fetched

    def _ahead(self, items: Iterator[T], name: str) -> Iterator[T]:
        """The same from a thread of its own."""
        arrivals: SimpleQueue[T | BaseException | None] = SimpleQueue()
        thread = threading.Thread(target=_put, args=(items, arrivals), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
        return _received(arrivals)


def _turns(count: int) -> SimpleQueue[None]:
    """``count`` turns to take, each to be given back."""
    turns: SimpleQueue[None] = SimpleQueue()
    for _ in range(count):
        turns.put(None)
    return turns


def _put(items: Iterator[T], arrivals: SimpleQueue[T | BaseException | None]) -> None:
    try:
        for item in items:
            arrivals.put(item)
            del item
        arrivals.put(None)
    except BaseException as error:  # noqa: BLE001  (whatever it is, it is raised where the batch belongs)
        arrivals.put(error)


def _received(arrivals: SimpleQueue[T | BaseException | None]) -> Iterator[T]:
    while (came := arrivals.get()) is not None:
        if isinstance(came, BaseException):
            try:
                raise came
            finally:
                del came  # or the error would keep itself
        yield came
        del came
