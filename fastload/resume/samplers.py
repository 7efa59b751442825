"""``SamplerState``: what decides which samples a loader yields and in which order, and how to continue within it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from math import ceil
from numbers import Integral
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from fastload.resume.consumer_state import by_next, source_of, synchronize_generators
from fastload.resume.share import ACCELERATE, SAMPLER, Share, samplers_of
from fastload.resume.wrapped_loader import torch_loader_in
from fastload.structure.loaded_types import loaded_types

__all__ = ["SamplerState", "length_of"]

FABRICS_EPOCH = "_num_iter_calls"  # what Fabric's loader sets its sampler's epoch to when a pass begins


class SamplerState:
    """The samplers of a loader: their generators, their epoch, and the ranks that share it.

    >>> from torch.utils.data import DataLoader, DistributedSampler
    >>> state = SamplerState(DataLoader(range(8), sampler=DistributedSampler(range(8), num_replicas=4, rank=1)))
    >>> state.share.rank, state.share.ranks, state.epoch
    (1, 4, 0)

    A loader without samplers, such as a generator, has no epoch and no generators. ``share`` is by default what is
    known of the loader.
    """

    def __init__(self, loader: Any, share: Share | None = None) -> None:
        self.loader = loader
        self._source = source_of(loader)
        self._samplers = samplers_of(loader)
        self.share = share or Share.of(loader)

    @property
    def batch_size(self) -> int | None:
        return _first_integer("batch_size", [self.loader, self._samplers[1]])

    @property
    def epoch(self) -> int | None:
        """That of samplers or data set; it stays at 0 without calls of ``set_epoch``, while the loader's counts up."""
        owners = self._with_set_epoch()
        places = {FABRICS_EPOCH: [self.loader], "epoch": owners, "iteration": owners}  # the last is Accelerate's
        return next((each for each in (_first_integer(*place) for place in places.items()) if each is not None), None)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.loader, FABRICS_EPOCH):
            setattr(self.loader, FABRICS_EPOCH, epoch)
        for each in self._with_set_epoch():
            each.set_epoch(epoch)

    def _with_set_epoch(self) -> list[Any]:
        """The loader, if it has ``set_epoch``, or else those of its samplers and its data set that have it."""
        inner = torch_loader_in(self.loader)
        data = getattr(self.loader if inner is None else inner, "dataset", None)
        candidates = [self.loader] if hasattr(self.loader, "set_epoch") else [*self._samplers, data]
        return [each for each in candidates if callable(getattr(each, "set_epoch", None))]

    @property
    def has_indices(self) -> bool:
        """Whether samples can be skipped by drawing their indices only: a map-style dataset in a plain DataLoader."""
        return (
            isinstance(self._source, DataLoader)
            and type(self._source).__iter__ is DataLoader.__iter__  # a subclass's own may not use the samplers
            and not isinstance(self._source.dataset, IterableDataset)
        )

    @property
    def can_rebatch(self) -> bool:
        """Whether batches are consecutive indices of a sampler, so that a batch may begin at any of them."""
        return self.has_indices and type(self._source.batch_sampler) is BatchSampler

    def fingerprint(self) -> dict[str, Any]:
        """What two loaders must have in common to yield the same samples in the same order."""
        innermost = next((each for each in reversed(self._samplers) if each is not None), None)
        return {
            "loader": type(self.loader).__name__,
            "sampler": None if innermost is None else type(innermost).__name__,
            "generators": len(self._generators),
            "samples": length_of(getattr(innermost, "dataset", self._samplers[0])),  # of all ranks
            "batch_size": self.batch_size,
            "ranks": self.share.ranks,
            "run": self.share.run,
            "num_workers": _first_integer("num_workers", [self.loader]),
            # A pass that starts workers draws their seed from the generator that a sampler without epochs shuffles by;
            # a pass over persistent workers, after the first, does not.
            "persistent_workers": self.epoch is None and self._keeps_workers(),
        }

    def changeable(self) -> set[str]:
        """The names in ``fingerprint`` of what may differ when a state is loaded."""
        if self.can_rebatch:
            return {"batch_size", "num_workers"} | ({"ranks"} if self.share.known_by == SAMPLER else set())
        return {"num_workers"} if self.has_indices else set()

    def missing(self, rows: int, drawn: int) -> int:
        """How many samples an epoch's last batch, of ``rows``, is short of ``batch_size``; 0 for others, or if unknown.

        ``drawn`` is :attr:`Position.drawn` after it.
        """
        batches, size = self._samplers[1], self.batch_size or 0
        samples = length_of(getattr(batches, "sampler", None)) if isinstance(batches, BatchSampler) else None
        if samples is None or samples < size:  # an epoch's only batch is a whole one
            return 0
        missing = max(drawn - samples, 0)
        return missing if rows == size - missing else 0  # a collate function may make more or fewer of them

    # What an epoch's order is drawn from

    def start(self) -> dict[str, Any]:
        """The state that the next epoch's order will be drawn from, in plain values and tensors."""
        return {
            "default_generator": self.default_generator(),
            "generators": [each.get_state() for each in self._generators],
            "sampler_epoch": self.epoch,
            "kept_workers": self._keeps_workers() and self._source._iterator is not None,  # noqa: SLF001
        }

    def default_generator(self) -> torch.Tensor | None:
        """The state of torch's default CPU generator; None if ranks share an order, which it does not decide then."""
        shares_order = self.share.ranks > 1 and self.share.known_by in (SAMPLER, ACCELERATE)
        return None if shares_order else torch.get_rng_state()

    @property
    def _generators(self) -> list[torch.Generator]:
        """The generators that were passed to the loader and its samplers, each once."""
        seeded = loaded_types("accelerate.data_loader", "SeedableRandomSampler")  # seeds its own with each epoch
        owners = [each for each in (self.loader, *self._samplers) if not isinstance(each, seeded)]
        found = [getattr(owner, "generator", None) for owner in owners]
        return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())

    def check_generators(self, start: Mapping[str, Any]) -> None:
        """Refuse states that the generators cannot take.

        Raises:
            ValueError: their number, or the kind or content of one, is not that of a generator's state.
        """
        try:
            for generator, state in zip(self._generators, start["generators"], strict=True):
                torch.Generator(generator.device).set_state(state.cpu())
        except (RuntimeError, TypeError, ValueError) as error:
            devices = [str(generator.device) for generator in self._generators]
            raise ValueError(
                f"the state's generators must be states of this loader's, on {devices}; got {start['generators']}"
            ) from error

    def restore_generators(self, start: Mapping[str, Any]) -> None:
        """Set the generators that were passed in to their states in ``start``; torch's default one is left alone."""
        for generator, state in zip(self._generators, start["generators"], strict=True):
            generator.set_state(state)
        synchronize_generators(self.loader)

    # Continuing within an epoch

    def resume(
        self, start: Mapping[str, Any], *, samples: int, batches: int, batch_size: int | None
    ) -> tuple[Iterator[Any], int]:
        """Return an iterator over an epoch's batches from a position on, and how many batches before it were missing.

        The position is after ``samples`` samples if the loader ``can_rebatch``, else after ``batches`` batches. Of the
        samples, which came in batches of ``batch_size``, those that the last batch was short of may be missing.
        Generators are left as an uninterrupted pass would have left them.
        """
        name = "sampler" if self._source.batch_sampler is None else "batch_sampler"
        whole = getattr(self._source, name)
        skipped = rest = SkipFirst(whole, batches)
        if self.can_rebatch:
            skipped = SkipFirst(whole.sampler, samples)
            rest = SkipFirst(BatchSampler(skipped, whole.batch_size, whole.drop_last), 0)
        # A copy of the loader iterates over the rest: DataLoader refuses to have its sampler set, hence `vars`.
        resumed: Any = copy.copy(self._source)
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
            self._source._iterator = iterator  # noqa: SLF001
        if not self.can_rebatch:
            return iterator, skipped.missing
        if whole.drop_last:  # no batch of the epoch is short of samples
            return iterator, ceil(skipped.missing / whole.batch_size)
        is_short = skipped.missing < (batch_size or 1)
        return iterator, 0 if is_short else max(1, skipped.missing // whole.batch_size)

    def _keeps_workers(self) -> bool:
        return isinstance(self._source, DataLoader) and bool(self._source.persistent_workers)


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
        self._left, self._has_skipped = by_next(iter(self._items)), False
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


def length_of(sized: Any) -> int | None:
    """``len(sized)``; None if it has none."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None
