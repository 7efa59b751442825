"""``Fetcher``: pulls the batches of one pass from the loader, and decodes their files ahead of the rest of the work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from fastload.decoder import Decoded, Decoder
from fastload.nested import Path
from fastload.progress import Position, Progress
from fastload.room import Place, Room

__all__ = ["Fetched", "Fetcher"]

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


class Fetcher:
    """Pulls the batches of one pass, each as soon as there is a place for it; until the end, or the pass is closed.

    With a ``decoder`` a thread of its own does so, and decodes: to drive a decoder takes the host longer than the rest
    of the work on a batch does (docs/decoding.md), and neither is to wait for the other.
    """

    def __init__(self, batches: Iterator[Any], progress: Progress, room: Room, decoder: Decoder | None) -> None:
        self.batches = batches
        self.progress = progress
        self.room = room
        self._decoder = decoder
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[Fetched]:
        if self._decoder is None:
            return self._pulled()
        arrivals: SimpleQueue[Fetched | BaseException | None] = SimpleQueue()
        work = self._decoder, arrivals
        self._thread = threading.Thread(target=self._decode, args=work, name="fastload-decode", daemon=True)
        self._thread.start()
        return _received(arrivals)

    def close(self) -> None:
        """Wait for the thread, and let go of the loader, which an error's traceback would keep otherwise."""
        if self._thread is not None and self._thread.ident is not None:
            self.room.close()
            self._thread.join()
        del self.batches

    def _pulled(self) -> Iterator[Fetched]:
        while place := self.room.enter():
            if (batch := next(self.batches, _NOTHING)) is _NOTHING:
                return
            fetched = Fetched(batch, self.progress.fetched(), place)
            del batch  # while the next is waited for, the last is not to be kept
            yield fetched
            del fetched

    def _decode(self, decoder: Decoder, arrivals: SimpleQueue[Fetched | BaseException | None]) -> None:
        try:
            decoder.side.adopt_thread()
            for fetched in self._pulled():
                try:
                    fetched.decoded = decoder(fetched.batch)
                    arrivals.put(fetched)
                finally:
                    del fetched
            arrivals.put(None)
        except BaseException as error:  # noqa: BLE001  (whatever it is, it is raised where the batch belongs)
            arrivals.put(error)
        finally:
            decoder.close()


def _received(arrivals: SimpleQueue[Fetched | BaseException | None]) -> Iterator[Fetched]:
    while (came := arrivals.get()) is not None:
        if isinstance(came, BaseException):
            try:
                raise came
            finally:
                del came  # or the error would keep itself
        yield came
        del came
