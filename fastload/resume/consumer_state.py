"""``ConsumerState``: what Accelerate's loaders tell the training loop, told of the batch that the consumer holds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from fastload.structure.loaded_types import loaded_types

__all__ = ["ConsumerState", "by_next", "pull_from", "source_of", "synchronize_generators"]

MODULE = "accelerate.data_loader"
LOADERS = "DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"


class ConsumerState:
    """One pass over a loader of Accelerate: its gradient state, epoch and own state follow the consumer.

    Accelerate's loaders change these as they are iterated over. Batches are pulled ahead, so they are pulled from
    :func:`source_of` the loader, which changes nothing, and the consumer's thread makes the changes: ``begin`` before
    the first batch, ``holds`` with each, ``ended`` after the last. ``accelerator.accumulate`` and
    ``accelerator.gather_for_metrics`` read them. ``begin`` may be a collective, which belongs in that thread too.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._counts_epochs = hasattr(loader, "iteration")  # SkipDataLoader does not, and tells of no last batch
        self._epoch = 0

    @classmethod
    def of(cls, loader: Any) -> ConsumerState | None:
        """The state of a loader of Accelerate; None for others.

        Raises:
            ValueError: rank 0 would read for several ranks and send each its batches, which takes collectives in the
                background, beside those of training.
        """
        if not _is_accelerate(loader):
            return None
        is_dispatcher = isinstance(loader, loaded_types(MODULE, "DataLoaderDispatcher"))
        ranks = loader.state.num_processes if is_dispatcher else 1
        if ranks > 1:
            raise ValueError(
                f"{type(loader).__name__} reads on one rank for {ranks}, which PrefetchLoader cannot do ahead of "
                "training; let each rank read its own: "
                "Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False)), or "
                'TrainingArguments(accelerator_config={"dispatch_batches": False})'
            )
        return cls(loader)

    def begin(self, epoch: int) -> None:
        synchronize_generators(self._loader)
        self._loader.begin()
        self._epoch = epoch
        if self._counts_epochs:
            self._loader.set_epoch(epoch)

    def holds(self, own_state: Any, *, is_last: bool) -> None:
        """Note that the consumer has a batch, after which the source's own state is ``own_state``, None without one."""
        if self._counts_epochs:
            self._loader.end_of_dataloader = is_last
        if own_state is not None:
            self._loader.dl_state_dict = {**own_state, "_iterator_finished": is_last}

    def ended(self) -> None:
        if self._counts_epochs:
            self._loader.iteration = self._epoch + 1
        self._loader.end()


def source_of(loader: Any) -> Any:
    """What ``loader`` gets its batches from: itself, or the ``DataLoader`` inside one of Accelerate's."""
    return loader.base_dataloader if _is_accelerate(loader) else loader


def pull_from(loader: Any) -> Iterator[Any]:
    """``iter(loader)``, which decides the order; of a loader of Accelerate without what it changes."""
    batches = iter(source_of(loader))
    if type(batches) is _SingleProcessDataLoaderIter:
        _begin_order(batches)
    skipped = loader.skip_batches if _is_accelerate(loader) else 0
    return islice(batches, skipped, None) if skipped else batches


def _begin_order(batches: _SingleProcessDataLoaderIter) -> None:
    """Take the first indices now, as a ``DataLoader`` with workers does.

    Most samplers draw their order when they are first asked, from a generator that others draw from as well. Asked by
    a background thread, it would depend on time which of them draws first.
    """
    indices = by_next(batches._sampler_iter)  # noqa: SLF001
    batches._sampler_iter = chain(list(islice(indices, 1)), indices)  # noqa: SLF001


def by_next(iterator: Iterator[Any]) -> Iterator[Any]:
    """What is left in an iterator, by ``next`` alone: some samplers begin anew with each ``iter``.

    >>> list(by_next(iter([1, 2])))
    [1, 2]
    """
    with suppress(StopIteration):
        while True:
            yield next(iterator)


def synchronize_generators(loader: Any) -> None:
    """Give the generators of a loader of Accelerate the states that rank 0 has, if it is made so."""
    if _is_accelerate(loader) and getattr(loader, "rng_types", None) is not None:
        sys.modules[MODULE].synchronize_rng_states(loader.rng_types, loader.synchronized_generator)


def _is_accelerate(loader: Any) -> bool:
    """Whether it is iterated over as Accelerate's loaders are; a subclass with an ``__iter__`` of its own is not."""
    known: tuple[Any, ...] = loaded_types(MODULE, *LOADERS)
    return any(getattr(type(loader), "__iter__", None) is each.__iter__ for each in known)
