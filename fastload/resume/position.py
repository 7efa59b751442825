"""``Progress``: the consumer's position in a pass, which is behind what the background thread has fetched."""

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
    """A place between two batches of a pass.

    ``batches`` counts the batches before it, ``drawn`` the samples that the sampler drew for them, ``samples`` the
    samples transformed, all on this rank. ``loader`` is the wrapped loader's own state there, None if it has none.
    """

    batches: int = 0
    drawn: int = 0
    samples: int = 0
    loader: Any = None


class Progress:
    """Counts what one pass fetches, and holds in ``yielded`` the position after the last batch that was yielded.

    >>> progress = Progress(["a", "b"], epoch=0, start={})
    >>> [progress.fetched().batches for _ in range(2)], progress.yielded.batches
    ([1, 2], 0)

    ``start`` is :meth:`SamplerState.start` from before the pass; ``first`` is the position at which a resumed pass
    begins. Make one after ``iter(loader)``, when the loader's own state is that of the pass. The pass sets ``yielded``
    with each batch, and ``ended`` after the last one.
    """

    def __init__(self, loader: Any, epoch: int, start: Mapping[str, Any], first: Position | None = None) -> None:
        self.epoch = epoch
        self.start = start
        self.ended = False
        self._loader = loader
        self._batch_size = SamplerState(loader).batch_size or 1
        self._fetched = self.yielded = replace(first or Position(), loader=own_state(loader))

    def fetched(self) -> Position:
        """Count a fetched batch, and return the position after it; ``samples`` is left to the transform.

        Call it before the next batch is fetched, which changes the loader's own state.
        """
        last = self._fetched
        self._fetched = Position(
            last.batches + 1, last.drawn + self._batch_size, last.samples, loader=own_state(self._loader)
        )
        return self._fetched


def own_state(loader: Any) -> Any:
    """Return a deep copy of the loader's own state, which its next batch may change; None if it keeps none."""
    # Not isinstance: a wrapper may forward these methods by __getattr__, which a Protocol does not see.
    if not all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict")):
        return None
    # Accelerate's loaders always have both methods; they raise unless the loader was made stateful.
    with contextlib.suppress(AttributeError, NotImplementedError):
        return copy.deepcopy(loader.state_dict())
    return None
