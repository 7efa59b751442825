"""``SamplerState``: what decides which samples a loader yields and in which order, and how to continue within it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from numbers import Integral
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

__all__ = ["SamplerState"]


class SamplerState:
    """The samplers of a loader: their generators, their epoch, and the ranks that share it.

    >>> from torch.utils.data import DataLoader, DistributedSampler
    >>> state = SamplerState(DataLoader(range(8), sampler=DistributedSampler(range(8), num_replicas=4, rank=1)))
    >>> state.share, state.epoch
    ((1, 4), 0)

    A loader without samplers, such as a generator, has no epoch, no generators, and one rank.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        batch_sampler = getattr(loader, "batch_sampler", None)
        self._samplers = [getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]

    @property
    def share(self) -> tuple[int, int]:
        """The rank, and the number of ranks that share an epoch, from a sampler such as ``DistributedSampler``.

        Rank ``r`` of ``n`` has the samples ``r, r + n, r + 2 * n, …`` of the epoch.
        """
        for sampler in self._samplers:
            rank, ranks = getattr(sampler, "rank", None), getattr(sampler, "num_replicas", None)
            if isinstance(rank, Integral) and isinstance(ranks, Integral):
                return int(rank), int(ranks)
        return 0, 1

    @property
    def batch_size(self) -> int | None:
        return _first_integer("batch_size", [self._loader, self._samplers[1]])

    @property
    def epoch(self) -> int | None:
        """The samplers' epoch: without calls of ``set_epoch`` it stays at 0, while the loader's counts up."""
        return _first_integer("epoch", self._with_set_epoch())

    def set_epoch(self, epoch: int) -> None:
        for each in self._with_set_epoch():
            each.set_epoch(epoch)

    def _with_set_epoch(self) -> list[Any]:
        """The loader, if it has ``set_epoch``, or else those of its samplers that have it."""
        candidates = [self._loader] if hasattr(self._loader, "set_epoch") else self._samplers
        return [each for each in candidates if callable(getattr(each, "set_epoch", None))]

    @property
    def has_indices(self) -> bool:
        """Whether samples can be skipped by drawing their indices only: a map-style dataset in a plain DataLoader."""
        return (
            isinstance(self._loader, DataLoader)
            and type(self._loader).__iter__ is DataLoader.__iter__  # a subclass's own may not use the samplers
            and not isinstance(self._loader.dataset, IterableDataset)
        )

    @property
    def can_rebatch(self) -> bool:
        """Whether batches are consecutive indices of a sampler, so that a batch may begin at any of them."""
        return self.has_indices and type(self._loader.batch_sampler) is BatchSampler

    def fingerprint(self) -> dict[str, Any]:
        """What two loaders must have in common to yield the same samples in the same order."""
        sampler, batch_sampler, inner_sampler = self._samplers
        innermost = next((each for each in (inner_sampler, batch_sampler, sampler) if each is not None), None)
        return {
            "loader": type(self._loader).__name__,
            "sampler": None if innermost is None else type(innermost).__name__,
            "generators": len(self._generators),
            "samples": _length(getattr(innermost, "dataset", sampler)),  # of all ranks
            "batch_size": self.batch_size,
            "ranks": self.share[1],
            "num_workers": getattr(self._loader, "num_workers", None),
            # A pass that starts workers draws their seed from the generator that a sampler without epochs shuffles by;
            # a pass over persistent workers, after the first, does not.
            "persistent_workers": self.epoch is None and self._keeps_workers(),
        }

    def changeable(self) -> set[str]:
        """The names in ``fingerprint`` of what may differ when a state is loaded."""
        if self.can_rebatch:
            return {"batch_size", "ranks", "num_workers"}
        return {"num_workers"} if self.has_indices else set()

    # What an epoch's order is drawn from

    def start(self) -> dict[str, Any]:
        """The state that the next epoch's order will be drawn from, in plain values and tensors."""
        return {
            "default_generator": self.default_generator(),
            "generators": [each.get_state() for each in self._generators],
            "sampler_epoch": self.epoch,
            "kept_workers": self._keeps_workers() and self._loader._iterator is not None,  # noqa: SLF001
        }

    def default_generator(self) -> torch.Tensor | None:
        """The state of torch's default CPU generator; None if ranks share the epoch, whose order it does not decide."""
        return torch.get_rng_state() if self.share[1] == 1 else None

    @property
    def _generators(self) -> list[torch.Generator]:
        """The generators that were passed to the loader and its samplers, each once."""
        found = [getattr(owner, "generator", None) for owner in (self._loader, *self._samplers)]
        return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())

    def restore_generators(self, start: Mapping[str, Any]) -> None:
        """Set the generators that were passed in to their states in ``start``; torch's default one is left alone."""
        for generator, state in zip(self._generators, start["generators"], strict=True):
            generator.set_state(state)

    # Continuing within an epoch

    def resume(self, start: Mapping[str, Any], *, samples: int, batches: int) -> tuple[Iterator[Any], int]:
        """Return an iterator over an epoch's batches from a position on, and how many batches before it were missing.

        The position is after ``samples`` samples if the loader ``can_rebatch``, else after ``batches`` batches.
        Generators are left as an uninterrupted pass would have left them.
        """
        name = "sampler" if self._loader.batch_sampler is None else "batch_sampler"
        whole = getattr(self._loader, name)
        rest = SkipFirst(whole, batches)
        if self.can_rebatch:
            rest = SkipFirst(BatchSampler(SkipFirst(whole.sampler, samples), whole.batch_size, whole.drop_last), 0)
        # A copy of the loader iterates over the rest: DataLoader refuses to have its sampler set, hence `vars`.
        resumed: Any = copy.copy(self._loader)
        vars(resumed).update({name: (), "_iterator": None})
        if start["kept_workers"] and self._keeps_workers():
            # The uninterrupted pass reused its workers and drew no seed for them: their seed comes from a forked RNG.
            with torch.random.fork_rng(devices=[]):
                iter(resumed)._index_sampler = rest  # noqa: SLF001
        vars(resumed)[name] = rest
        self.restore_generators(start)
        iterator = iter(resumed)
        rest.skip()
        if self._keeps_workers():  # later epochs use the workers too, with the whole sampler
            iterator._index_sampler = whole  # noqa: SLF001
            self._loader._iterator = iterator  # noqa: SLF001
        return iterator, rest.missing

    def _keeps_workers(self) -> bool:
        return isinstance(self._loader, DataLoader) and self._loader.persistent_workers


class SkipFirst:
    """A sampler without its first ``count`` items.

    >>> list(SkipFirst(range(5), 3))
    [3, 4]

    ``missing`` says, after ``skip``, how many of the ``count`` there were not.
    """

    def __init__(self, items: Iterable[Any], count: int) -> None:
        self.missing = 0
        self._items = items
        self._count = count
        self._left: Iterator[Any] = iter(())
        self._has_skipped = False

    def __iter__(self) -> Iterator[Any]:
        # Not in the generator below: some samplers draw in `iter`, and DataLoader may call it twice and use the later.
        self._left, self._has_skipped = iter(self._items), False
        return self._iterate()

    def skip(self) -> None:
        """Drop the first items, and take one more: a sampler draws its order when its first item is asked for."""
        if not self._has_skipped:
            self._has_skipped = True
            self.missing = self._count - sum(1 for _ in islice(self._left, self._count))
            self._left = chain(list(islice(self._left, 1)), self._left)

    def _iterate(self) -> Iterator[Any]:
        self.skip()
        yield from self._left


def _first_integer(name: str, owners: list[Any]) -> int | None:
    values = (getattr(owner, name, None) for owner in owners)
    return next((int(value) for value in values if isinstance(value, Integral)), None)


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None
