"""``Progress``: how far a pass has come for its consumer, which is behind what has been fetched."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fastload.resume.samplers import SamplerState

__all__ = ["Position", "Progress", "own_state"]


@dataclass(frozen=True)
class Position:
    """How many batches of a pass there were, and of the samples: drawn by the sampler, and transformed, in this rank.

    ``loader`` is the wrapped loader's own state there, if it keeps one.
    """

    batches: int = 0
    drawn: int = 0
    samples: int = 0
    loader: Any = None


class Progress:
    """How far one pass has come: ``yielded`` is the consumer's position, behind what the background thread has fetched.

    >>> progress = Progress(["a", "b"], epoch=0, start={})
    >>> [progress.fetched().batches for _ in range(2)], progress.yielded.batches
    ([1, 2], 0)
    """

    def __init__(self, loader: Any, epoch: int, start: Mapping[str, Any], first: Position | None = None) -> None:
        """Begin at ``first``; to be made after ``iter(loader)``. ``start`` is what the order was drawn from."""
        self.epoch = epoch
        self.start = start
        self.ended = False
        self._loader = loader
        self._batch_size = SamplerState(loader).batch_size or 1
        self._fetched = self.yielded = replace(first or Position(), loader=own_state(loader))

    def fetched(self) -> Position:
        """One more batch was: where the consumer is once it has that, but for the samples transformed by then.

        To be called before the next is fetched, after which the loader's own state is another.
        """
        last = self._fetched
        self._fetched = Position(
            last.batches + 1, last.drawn + self._batch_size, last.samples, loader=own_state(self._loader)
        )
        return self._fetched


def own_state(loader: Any) -> Any:
    """The state of a loader that keeps one, else None; a copy, as what it is made of may change with the next batch."""
    if not all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict")):
        return None
    # Accelerate's loaders have the methods always, and what these need only if they were asked to be stateful.
    with contextlib.suppress(AttributeError, NotImplementedError):
        return copy.deepcopy(loader.state_dict())
    return None
