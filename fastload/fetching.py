"""``Fetcher``: pulls the batches of one pass from the loader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastload.progress import Position, Progress
from fastload.room import Place, Room

__all__ = ["Fetched", "Fetcher"]

_NOTHING = object()


@dataclass
class Fetched:
    """A batch as the loader yielded it, where the loader was then, and the place that the batch is to take."""

    batch: Any
    position: Position
    place: Place


class Fetcher:
    """Pulls the batches of one pass, each as soon as there is a place for it; until the end, or the pass is closed."""

    def __init__(self, batches: Iterator[Any], progress: Progress, room: Room) -> None:
        self._batches = batches
        self._progress = progress
        self._room = room

    def __iter__(self) -> Iterator[Fetched]:
        while place := self._room.enter():
            if (batch := next(self._batches, _NOTHING)) is _NOTHING:
                return
            fetched = Fetched(batch, self._progress.fetched(), place)
            del batch  # as the next is waited for, the last is not to be kept
            yield fetched
            del fetched

    def close(self) -> None:
        """Let go of the loader, which an error's traceback would keep otherwise."""
        del self._batches
