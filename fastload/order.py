"""``Order``: what decides which samples a loader yields, and in which order; and a loader of those that are left."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from numbers import Integral
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

__all__ = ["Order", "default_generator_at"]


class Order:
    """The samplers of a loader, their generators, their epoch, and the ranks that share it.

    >>> from torch.utils.data import DataLoader, DistributedSampler
    >>> order = Order(DataLoader(range(8), sampler=DistributedSampler(range(8), num_replicas=4, rank=1)))
    >>> order.share, order.sampler, order.epoch
    ((1, 4), 'DistributedSampler', 0)

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
    def sampler(self) -> str | None:
        """The type of the sampler that the others draw from."""
        plain, batches, within = self._samplers
        innermost = within or batches or plain
        return None if innermost is None else type(innermost).__name__

    @property
    def batch_size(self) -> int | None:
        sizes = (getattr(owner, "batch_size", None) for owner in (self._loader, self._samplers[1]))
        return next((int(size) for size in sizes if isinstance(size, Integral)), None)

    @property
    def epoch(self) -> int | None:
        """The samplers' own, which is not the loader's if nobody calls ``set_epoch``."""
        epochs = (getattr(owner, "epoch", None) for owner in self._owners_of_epoch())
        return next((int(epoch) for epoch in epochs if isinstance(epoch, Integral)), None)

    def set_epoch(self, epoch: int) -> None:
        for owner in self._owners_of_epoch():
            owner.set_epoch(epoch)

    def _owners_of_epoch(self) -> list[Any]:
        owners = [self._loader] if hasattr(self._loader, "set_epoch") else self._samplers
        return [owner for owner in owners if callable(getattr(owner, "set_epoch", None))]

    @property
    def generators(self) -> list[torch.Generator]:
        """Those that were given to the loader and its samplers, each once."""
        found = [getattr(owner, "generator", None) for owner in (self._loader, *self._samplers)]
        return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())

    @property
    def hangs_on_the_default_generator(self) -> bool:
        """Not where ranks share an epoch: they agree on its order by its number, and the generator is each rank's."""
        return self.share[1] == 1

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

    @property
    def has_kept_workers(self) -> bool:
        """Whether persistent workers are there already: then ``iter()`` draws no seed for them any more."""
        kept = getattr(self._loader, "persistent_workers", False)
        return bool(kept) and getattr(self._loader, "_iterator", None) is not None

    def after(self, *, samples: int, batches: int, with_kept_workers: bool) -> tuple[Iterator[Any], int]:
        """Iterate over what comes after so many samples of a row, else after so many batches.

        How many of these were missing comes with it. Generators are drawn from as ``iter()`` of the loader would have.
        """
        outer, name = self._loader.batch_sampler, "batch_sampler"
        rewind = self._rewind() if with_kept_workers else None
        if self.is_a_row:
            passing = Rest(outer.sampler, samples)
            rest = Rest(BatchSampler(passing, outer.batch_size, outer.drop_last), 0, rewind)
        else:
            name = name if outer is not None else "sampler"
            passing = rest = Rest(getattr(self._loader, name), batches, rewind)
        iterator = self._iterate(rest, name)
        rest.begin()
        return iterator, passing.missing

    def _iterate(self, rest: Rest, name: str) -> Iterator[Any]:
        twin = copy.copy(self._loader)
        vars(twin).update({name: rest, "_iterator": None})  # `DataLoader` refuses to have its sampler set
        iterator: Any = iter(twin)
        if self._loader.persistent_workers:
            iterator._index_sampler = getattr(self._loader, name)  # noqa: SLF001  (of the epochs that follow)
            self._loader._iterator = iterator  # noqa: SLF001
        return iterator  # type: ignore[no-any-return]

    def _rewind(self) -> Callable[[], None]:
        default, states = torch.get_rng_state(), [(each, each.get_state()) for each in self.generators]

        def rewind() -> None:
            torch.set_rng_state(default)
            for generator, state in states:
                generator.set_state(state)

        return rewind


class Rest:
    """What a sampler yields after its first ``count``; ``before`` is called whenever it is asked for an iterator.

    >>> rest = Rest(range(5), 7)
    >>> list(rest), rest.missing
    ([], 2)
    >>> list(Rest(range(5), 3))
    [3, 4]
    """

    def __init__(self, items: Iterable[Any], count: int, before: Callable[[], None] | None = None) -> None:
        self.missing = 0
        self._before = before
        self._items = items
        self._count = count
        self._left: Iterator[Any] = iter(())
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        # At once, as some samplers draw here; and `DataLoader` may ask twice, and use the later.
        if self._before:
            self._before()
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


@contextmanager
def default_generator_at(state: torch.Tensor | None) -> Iterator[None]:
    """Let torch's default generator be at ``state`` here, and then again where it was; None leaves it alone."""
    if state is None:
        yield
        return
    before = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(before)
