"""``Progress``: the consumer's position in a pass, which is behind what the background thread has fetched."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from threading import Condition
from typing import Any

from fastload.resume.checksum import checksum_of
from fastload.resume.consumer_state import source_of
from fastload.resume.samplers import SamplerState, length_of
from fastload.structure.tree import Tree

__all__ = ["Latest", "Position", "Progress", "own_state"]


@dataclass(frozen=True)
class Position:
    """A place between two batches of a pass.

    ``batches`` counts the batches before it, ``drawn`` the samples that the sampler drew for them, ``samples`` the
    samples transformed, all on this rank. ``loader`` is the wrapped loader's own state there, None if it has none.
    ``checksum`` is that of the last of the batches if they will be read again, None if not or if it has none.
    """

    batches: int = 0
    drawn: int = 0
    samples: int = 0
    loader: Any = None
    checksum: int | None = None


class Progress:
    """Counts what one pass fetches, and holds in ``yielded`` the position after the last batch that was yielded.

    >>> progress = Progress(["a", "b"], epoch=0, start={})
    >>> [progress.fetched().batches for _ in range(2)], progress.yielded.batches
    ([1, 2], 0)

    ``start`` is :meth:`SamplerState.start` from before the pass; ``first`` is the position at which a resumed pass
    begins. Make one after ``iter(loader)``, when the loader's own state is that of the pass. The pass sets ``yielded``
    with each batch, and ``ended`` after the last one; its source calls ``exhausted``, or ``closed``. ``samplers_epoch``
    is that of :class:`SamplerState` when the pass began, or when the loader was exhausted.
    """

    def __init__(self, loader: Any, epoch: int, start: Mapping[str, Any], first: Position | None = None) -> None:
        self.epoch = epoch
        self.start = start
        self.ended = False
        self._loader = loader
        self._samplers = SamplerState(loader)
        self.samplers_epoch = self._samplers.epoch
        self._batch_size = self._samplers.batch_size or 1
        position = first or Position()
        if position.loader is None:  # else it is the state just loaded, and LitData's would change if it were asked for
            position = replace(position, loader=own_state(loader))
        self._fetched = self._first = self.yielded = position
        self._will_be_read_again = self._fetched.loader is None and not self._samplers.has_indices
        self._is_closed = False
        self._changed = Condition()  # of the two above
        self._process = os.getpid()

    @property
    def is_untouched(self) -> bool:
        """Whether no batch of the pass was yielded, and it has not ended."""
        return self.yielded is self._first and not self.ended

    @property
    def has_yielded_all(self) -> bool:
        """Whether the batch that was yielded last is the loader's last; waits until the loader is asked for the next.

        Loaders without a length are not asked: their passes are over when they have ``ended``.
        """
        length = length_of(self._loader)
        if length is None or self.yielded.batches < length or self._process != os.getpid():
            return False
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._fetched.batches > self.yielded.batches)
        return self._fetched.batches == self.yielded.batches

    def fetched(self, batch: Tree | None = None) -> Position:
        """Count ``batch``, which was fetched, and return the position after it; ``samples`` is left to the transform.

        Call it before the next batch is fetched, which changes the loader's own state.
        """
        last, state = self._fetched, own_state(self._loader)
        checksum = checksum_of(batch) if batch is not None and self._will_be_read_again else None
        position = Position(last.batches + 1, last.drawn + self._batch_size, last.samples, state, checksum)
        with self._changed:
            self._fetched = position
            self._changed.notify_all()
        return position

    def exhausted(self) -> None:
        """Note that the loader has no more batches."""
        self.samplers_epoch = self._samplers.epoch  # some samplers count their passes in it
        self.closed()

    def closed(self) -> None:
        """Note that no more batches will be fetched."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


@dataclass
class Latest:
    """The progress of the pass over a loader that began or yielded last; several may be open, one in another."""

    progress: Progress | None = None


def own_state(loader: Any) -> Any:
    """Return a deep copy of the loader's own state, which its next batch may change; None if it keeps none."""
    loader = source_of(loader)
    # Not isinstance: a wrapper may forward these methods by __getattr__, which a Protocol does not see.
    if not all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict")):
        return None
    # Accelerate's loaders always have both methods; they raise unless the loader was made stateful.
    with contextlib.suppress(AttributeError, NotImplementedError):
        return copy.deepcopy(loader.state_dict())
    return None
