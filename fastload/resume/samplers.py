"""``SamplerState``: what decides which samples a loader yields, and in which order."""

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
    """The samplers of a loader, their generators, their epoch, and the ranks that share it.

    >>> from torch.utils.data import DataLoader, DistributedSampler
    >>> order = SamplerState(DataLoader(range(8), sampler=DistributedSampler(range(8), num_replicas=4, rank=1)))
    >>> order.share, order.epoch
    ((1, 4), 0)

    Of a loader that has none of these, such as a generator, nothing is known, and it is alone.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        batch_sampler = getattr(loader, "batch_sampler", None)
        self._samplers = [getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]

    @property
    def share(self) -> tuple[int, int]:
        """Which of the ranks that share an epoch this is, and how many they are, as a ``DistributedSampler`` tells.

        Its samples are every so many of the epoch's, which gives each its place.
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
        """The samplers' own, which is not the loader's if nobody calls ``set_epoch``."""
        return _first_integer("epoch", self._owners_of_epoch())

    def set_epoch(self, epoch: int) -> None:
        for owner in self._owners_of_epoch():
            owner.set_epoch(epoch)

    def _owners_of_epoch(self) -> list[Any]:
        owners = [self._loader] if hasattr(self._loader, "set_epoch") else self._samplers
        return [owner for owner in owners if callable(getattr(owner, "set_epoch", None))]

    @property
    def has_indices(self) -> bool:
        """Whether samples can be passed over by their indices alone; not if a subclass iterates in a way of its own."""
        return (
            isinstance(self._loader, DataLoader)
            and type(self._loader).__iter__ is DataLoader.__iter__
            and not isinstance(self._loader.dataset, IterableDataset)
        )

    @property
    def is_a_row(self) -> bool:
        """Whether batches are cut from a row of samples, so that they may begin at any of them."""
        return self.has_indices and type(self._loader.batch_sampler) is BatchSampler

    def fingerprint(self) -> dict[str, Any]:
        """What another loader must have in common with this one to yield the same samples in the same order."""
        plain, batches, within = self._samplers
        innermost = next((each for each in (within, batches, plain) if each is not None), None)
        return {
            "loader": type(self._loader).__name__,
            "sampler": None if innermost is None else type(innermost).__name__,
            "generators": len(self._generators),
            "samples": _length(getattr(innermost, "dataset", plain)),  # of all ranks
            "batch_size": self.batch_size,
            "ranks": self.share[1],
            "num_workers": getattr(self._loader, "num_workers", None),
            # Workers that are kept draw no seed in later epochs, from the generator that a sampler without epochs uses.
            "persistent_workers": self.epoch is None and self._keeps_workers(),
        }

    def fingerprint_that_may_change(self) -> set[str]:
        if self.is_a_row:
            return {"batch_size", "ranks", "num_workers"}
        return {"num_workers"} if self.has_indices else set()

    # What an epoch's order is drawn from

    def start(self) -> dict[str, Any]:
        """What the order of the next epoch will be made of; plain values."""
        return {
            "default_generator": self.default_generator(),
            "generators": [each.get_state() for each in self._generators],
            "sampler_epoch": self.epoch,
            "kept_workers": self._keeps_workers() and self._loader._iterator is not None,  # noqa: SLF001
        }

    def default_generator(self) -> torch.Tensor | None:
        """The state of torch's, unless ranks share the epoch: they agree on the order by its number."""
        return torch.get_rng_state() if self.share[1] == 1 else None

    @property
    def _generators(self) -> list[torch.Generator]:
        """Those that were given to the loader and its samplers, each once."""
        found = [getattr(owner, "generator", None) for owner in (self._loader, *self._samplers)]
        return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())

    def put_back_generators(self, start: Mapping[str, Any]) -> None:
        """Put those that were given where they were at the start of an epoch; torch's default one is left alone."""
        for generator, state in zip(self._generators, start["generators"], strict=True):
            generator.set_state(state)

    # Going on within an epoch

    def after(self, start: Mapping[str, Any], *, samples: int, batches: int) -> tuple[Iterator[Any], int]:
        """Iterate over what comes after so many samples of a row, else after so many batches.

        How many of these batches were missing comes with it. Generators are drawn from as ``iter()`` of the loader did.
        """
        name = "sampler" if self._loader.batch_sampler is None else "batch_sampler"
        whole = getattr(self._loader, name)
        rest = Rest(whole, batches)
        if self.is_a_row:
            rest = Rest(BatchSampler(Rest(whole.sampler, samples), whole.batch_size, whole.drop_last), 0)
        twin: Any = copy.copy(self._loader)
        vars(twin).update({name: (), "_iterator": None})  # `DataLoader` refuses to have its sampler set
        if start["kept_workers"] and self._keeps_workers():
            with torch.random.fork_rng(devices=[]):  # in that epoch they were there, and no seed was drawn for them
                iter(twin)._index_sampler = rest  # noqa: SLF001
        vars(twin)[name] = rest
        self.put_back_generators(start)
        iterator = iter(twin)
        rest.begin()
        if self._keeps_workers():  # for the epochs that follow
            iterator._index_sampler = whole  # noqa: SLF001
            self._loader._iterator = iterator  # noqa: SLF001
        return iterator, rest.missing

    def _keeps_workers(self) -> bool:
        return isinstance(self._loader, DataLoader) and self._loader.persistent_workers


class Rest:
    """What a sampler yields after its first ``count``.

    >>> list(Rest(range(5), 3))
    [3, 4]
    """

    def __init__(self, items: Iterable[Any], count: int) -> None:
        self.missing = 0
        self._items = items
        self._count = count
        self._left: Iterator[Any] = iter(())
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        # At once, as some samplers draw here; and `DataLoader` may ask twice, and use the later.
        self._left, self._begun = iter(self._items), False
        return self._iterate()

    def begin(self) -> None:
        """Pass over the first, and take one more: a sampler draws its order when it is asked for something."""
        if not self._begun:
            self._begun = True
            self.missing = self._count - sum(1 for _ in islice(self._left, self._count))
            self._left = chain(list(islice(self._left, 1)), self._left)

    def _iterate(self) -> Iterator[Any]:
        self.begin()
        yield from self._left


def _first_integer(name: str, owners: list[Any]) -> int | None:
    values = (getattr(owner, name, None) for owner in owners)
    return next((int(value) for value in values if isinstance(value, Integral)), None)


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None
