"""``Progress``: how far a pass has come for its consumer; and ``Resumption``: how a new process goes on from there."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from itertools import islice
from typing import Any

import torch

from fastload.order import Order, default_generator_at

__all__ = ["Position", "Progress", "Resumption", "state_after"]

FORMAT = 1
START = ("default_generator_at_start", "generators", "sampler_epoch", "kept_workers")


@dataclass(frozen=True)
class Position:
    """After how many of the loader's batches and of the transform's samples a pass is, and the loader's state there."""

    batches: int = 0
    samples: int = 0
    own: Any = None
    at_end: bool = False


class Progress:
    """How far one pass has come: ``yielded`` is the consumer's position, behind what the background thread has fetched.

    >>> progress = Progress(["a", "b"], epoch=0)
    >>> batches = progress.begin()
    >>> for _ in batches:
    ...     progress.fetched()
    >>> progress.yielded.batches, progress.position(samples=2).batches
    (0, 2)
    """

    def __init__(self, loader: Any, epoch: int, resumption: Resumption | None = None) -> None:
        self.epoch = epoch
        self.started = resumption.started if resumption else _Start.of(loader)
        self.first = resumption.position if resumption else Position()
        self.drawn_before = resumption.drawn if resumption else 0
        self._loader = loader
        self._resumption = resumption

    def begin(self) -> Iterator[Any]:
        """Return the loader's batches, those left if it is resumed."""
        batches = self._resumption.batches() if self._resumption else iter(self._loader)
        self._fetched, self._own = self.first.batches, _own_state(self._loader)
        self.yielded = self.position(samples=0)
        return batches

    def fetched(self) -> None:
        """One more batch was; to be called before the next is, after which the loader's own state is another."""
        self._fetched += 1
        self._own = _own_state(self._loader)

    def position(self, samples: int) -> Position:
        """Where the consumer is once it has the batch fetched last; ``samples`` are those transformed in this pass."""
        return Position(self._fetched, self.first.samples + samples, self._own)

    def end(self) -> Position:
        return Position(self._fetched, own=_own_state(self._loader), at_end=True)


def _own_state(loader: Any) -> Any:
    """The state of a loader that keeps one, else None; a copy, as what it is made of may change with the next batch."""
    if not all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict")):
        return None
    # Accelerate's loaders have the methods always, and what these need only if they were asked to be stateful.
    with contextlib.suppress(AttributeError, NotImplementedError):
        return copy.deepcopy(loader.state_dict())
    return None


@dataclass(frozen=True)
class _Start:
    """What the order of an epoch was made of, before it was begun."""

    default: torch.Tensor | None
    generators: list[torch.Tensor]
    sampler_epoch: int | None
    kept_workers: bool

    @classmethod
    def of(cls, loader: Any) -> _Start:
        order = Order(loader)
        default = torch.get_rng_state() if order.hangs_on_the_default_generator else None
        return cls(default, [each.get_state() for each in order.generators], order.epoch, order.has_kept_workers)


def state_after(loader: Any, seed: int, epoch: int, progress: Progress | None) -> dict[str, Any]:
    """The state after what ``progress`` has yielded; or before ``epoch``, if that was all or there is none."""
    order = Order(loader)
    between = progress is None or progress.yielded.at_end
    if progress is None or progress.yielded.at_end:
        own = progress.yielded.own if progress else _own_state(loader)
        position, started, drawn = Position(own=own), _Start.of(loader), 0
    else:
        position, started, epoch = progress.yielded, progress.started, progress.epoch
        drawn = progress.drawn_before + (position.batches - progress.first.batches) * (order.batch_size or 1)
    now = started.default if between or drawn == 0 else _Start.of(loader).default
    return {
        "format": FORMAT,
        "seed": seed,
        "epoch": epoch,
        "batches": position.batches,
        "samples": position.samples,
        "drawn": drawn,
        "ranks": order.share[1],
        "batch_size": order.batch_size,
        "sampler": order.sampler,
        "default_generator": now,
        "loader": position.own,
        **dict(zip(START, astuple(started), strict=True)),
    }


class Resumption:
    """A state that has been loaded, at which the next pass over ``loader`` begins.

    >>> loader = ["a", "b", "c"]
    >>> state = state_after(loader, seed=0, epoch=4, progress=None)
    >>> list(Resumption(state | {"batches": 2}, loader, seed=0).batches())
    ['c']
    """

    def __init__(self, state: Mapping[str, Any], loader: Any, seed: int) -> None:
        self._loader = loader
        self._order = Order(loader)
        _check(state, self._order, seed)
        if state["loader"] is not None and not callable(getattr(loader, "load_state_dict", None)):
            raise ValueError(
                "the state holds one of the wrapped loader, and this one has no load_state_dict to take it: "
                f"{type(loader).__name__}; wrap a loader of the type that was wrapped"
            )
        self.state = dict(state)
        self.epoch: int = state["epoch"]
        self.started = _Start(*(state[key] for key in START))
        self.drawn: int = state["drawn"]
        self.position = Position(state["batches"], state["samples"])
        if (state["ranks"], state["batch_size"]) != (self._order.share[1], self._order.batch_size):
            self._share_anew()

    def _share_anew(self) -> None:
        """Give the ranks that there are now the samples that are left; each keeps its place in the epoch."""
        ranks, by_all = self._order.share[1], self.drawn * self.state["ranks"]
        if by_all % ranks:
            raise ValueError(
                f"the state was taken by {self.state['ranks']} ranks after {by_all} samples of the epoch, and {ranks} "
                f"ranks cannot have come equally far: resume with {self.state['ranks']}, or with a divisor of {by_all}"
            )
        self.drawn = by_all // ranks
        samples = self.drawn if self.position.samples else 0
        self.position = Position(self.drawn // (self._order.batch_size or 1), samples)

    def restore(self) -> None:
        """Put what makes the order where it was: the loader or its samplers and generators, and torch's default one."""
        if self.started.sampler_epoch is not None:
            self._order.set_epoch(self.started.sampler_epoch)
        if self.state["loader"] is not None:
            self._loader.load_state_dict(copy.deepcopy(self.state["loader"]))
            return
        for generator, state in zip(self._order.generators, self.started.generators, strict=True):
            generator.set_state(state)
        if self._order.hangs_on_the_default_generator and self.state["default_generator"] is not None:
            torch.set_rng_state(self.state["default_generator"])

    def give_up(self, epoch: int) -> None:
        if self.position.batches:
            warnings.warn(
                f"the state that was loaded is of epoch {self.epoch}, after {self.position.batches} batches; "
                f"set_epoch({epoch}) leaves out the rest: to go on there, begin at the loader's `epoch`",
                UserWarning,
                stacklevel=3,
            )

    def batches(self) -> Iterator[Any]:
        """Return those that are left, by passing over indices if there are any, else by pulling batches."""
        if self.state["loader"] is not None:
            return iter(self._loader)
        # The order was drawn from the default generator as it was then; training goes on with that of now.
        with default_generator_at(self.started.default if self.drawn else None):
            return self._passed_over() if self._order.has_indices else self._pulled()

    def _passed_over(self) -> Iterator[Any]:
        count, kept = self.position.batches, self.started.kept_workers
        if not self.drawn and not kept:
            return iter(self._loader)
        batches, missing = self._order.after(samples=self.drawn, batches=count, with_kept_workers=kept)
        missing //= self._counted_as_a_batch()
        if missing:
            del batches  # and its workers with it
            raise self._too_far(self.state["batches"] - missing)
        return batches

    def _counted_as_a_batch(self) -> int:
        """How many samples of a rank: a short last batch was counted as if it were whole, on all ranks that were."""
        if not self._order.is_a_row:
            return 1
        return int(-(-self.state["batch_size"] * self.state["ranks"] // self._order.share[1]))

    def _pulled(self) -> Iterator[Any]:
        batches: Iterator[Any] = iter(self._loader)
        found = sum(1 for _ in islice(batches, self.position.batches))
        if found < self.position.batches:
            del batches
            raise self._too_far(found)
        return batches

    def _too_far(self, found: int) -> ValueError:
        return ValueError(
            f"the state was taken after {self.state['batches']} batches of epoch {self.epoch}, and the loader has "
            f"{found}: give it the data that it had, or begin anew with a PrefetchLoader that has loaded no state"
        )


KEYS = frozenset(state_after([], seed=0, epoch=0, progress=None))


def _check(state: Mapping[str, Any], order: Order, seed: int) -> None:
    if state.get("format") != FORMAT or not state.keys() >= KEYS:
        raise ValueError(
            f"the state must be one of PrefetchLoader.state_dict() of format {FORMAT}; got format "
            f"{state.get('format')!r} with keys {sorted(map(str, state))}: take it with this version of fastload"
        )
    if state["seed"] != seed:
        raise ValueError(
            f"the state was taken with seed={state['seed']}, and this loader has seed={seed}: its augmentations would "
            f"be others; give PrefetchLoader seed={state['seed']}"
        )
    if (state["sampler"], len(state["generators"])) != (order.sampler, len(order.generators)):
        raise ValueError(
            f"the state was taken with sampler {state['sampler']} and {len(state['generators'])} generators, and this "
            f"loader has {order.sampler} and {len(order.generators)}: its order would be another; make it as it was"
        )
    then, now = (state["ranks"], state["batch_size"]), (order.share[1], order.batch_size)
    if then != now and (state["loader"] is not None or not order.is_a_row):
        raise ValueError(
            f"the state was taken by {then[0]} ranks with batch_size={then[1]}, and there are {now[0]} with "
            f"batch_size={now[1]}: these may change for a plain DataLoader over a map-style dataset only, one without "
            "a batch_sampler or a state of its own; resume as it was"
        )
