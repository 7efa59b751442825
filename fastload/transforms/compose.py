"""Several transforms, in as few passes over memory as they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch

from fastload.transforms.batch import Batch
from fastload.transforms.explain import described
from fastload.transforms.key import Key
from fastload.transforms.lazy import HALVES, LazyImages
from fastload.transforms.normalize import Normalize
from fastload.transforms.transform import Transform

__all__ = ["Compose"]

Step = Callable[..., Any]


class Compose(Transform):
    """Apply transforms one after another, as if in one go.

    >>> from fastload.transforms import Normalize, RandomHorizontalFlip
    >>> images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    >>> Compose([RandomHorizontalFlip(), Normalize([0.5] * 3, [0.5] * 3)])(images).unique()
    tensor([-1.])

    Transforms of this package that follow each other share passes over memory; nothing is rounded between them.
    ``print`` shows the passes. Beside them any callable that takes and returns a batch of images can stand in the list:
    a module of torchvision v2 or kornia, a compiled function.

    Raises:
        TypeError: an element is not callable.
    """

    def __init__(self, transforms: Sequence[Step]) -> None:
        self.transforms = list(_flattened(transforms))

    def __repr__(self) -> str:
        return f"Compose({self.transforms})"

    def __str__(self) -> str:
        return described(self.transforms, _store(self.transforms))

    def run(self, batch: Batch, key: Key) -> None:
        steps = list(enumerate(self.transforms))
        for shares, group in groupby(steps, key=lambda step: _shares_passes(step[1])):
            members = list(group)
            if batch.is_empty:
                return
            if shares:
                self._run_together(batch, key, members)
                continue
            for draw, transform in members:
                if isinstance(transform, Transform):
                    transform.run(batch, key.for_draw(draw))
                else:
                    batch.call(transform)

    def _run_together(self, batch: Batch, key: Key, members: list[tuple[int, Any]]) -> None:
        normalize = next((each for _, each in members if isinstance(each, Normalize)), None)
        channels = None if normalize is None else len(normalize.mean)
        with batch.work(channels=channels, store=_store([each for _, each in members])) as work:
            for draw, transform in members:
                transform.record(work, transform.sample(work.sizes, key.for_draw(draw)))

    def sample(self, sizes: torch.Tensor, key: Key) -> None:  # noqa: ARG002  (each transform samples in its turn)
        return None

    def record(self, work: LazyImages, parameters: Any) -> None:  # noqa: ARG002
        raise TypeError("a Compose records nothing itself: its transforms do")


def _shares_passes(transform: Step) -> bool:
    """Whether a transform's work can be done together with that of others."""
    return isinstance(transform, Normalize) or (
        isinstance(transform, Transform) and type(transform).run is Transform.run
    )


def _store(transforms: Sequence[Step]) -> torch.dtype:
    """How values lie between passes: no wider than they will be stored in the end."""
    normalize = next((each for each in transforms if isinstance(each, Normalize)), None)
    return torch.float16 if normalize is not None and normalize.dtype in HALVES else torch.float32


def _flattened(transforms: Sequence[Step]) -> Iterator[Step]:
    for transform in transforms:
        if isinstance(transform, Compose):
            yield from transform.transforms
        elif callable(transform):
            yield transform
        else:
            raise TypeError(f"a transform must be callable on a batch of images; got {transform!r}")
