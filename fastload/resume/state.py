"""``Resumption``: how a new process goes on where another was; and the state that tells it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import islice
from typing import Any

import torch

from fastload.resume.position import Position, Progress, own_state
from fastload.resume.samplers import SamplerState
from fastload.structure.tree import map_movable

__all__ = ["Resumption", "state_after"]

FORMAT = 1


def state_after(progress: Progress | None, loader: Any, seed: int, epoch: int) -> dict[str, Any]:
    """The state after what ``progress`` has yielded; or before ``epoch``, if that was all or there is none."""
    order = SamplerState(loader)
    if not getattr(loader, "in_order", True) and loader.num_workers > 1:
        raise ValueError(
            f"a loader with in_order=False and num_workers={loader.num_workers} yields another order each time, and "
            "cannot be resumed: make it with in_order=True"
        )
    start: Mapping[str, Any]
    if progress is None or progress.ended:
        position, start = Position(loader=own_state(loader)), order.start()
    else:
        position, start, epoch = progress.yielded, progress.start, progress.epoch
    return {
        "format": FORMAT,
        "epoch": epoch,
        **vars(position),
        "start": start,
        "default_generator": order.default_generator() if position.drawn else start["default_generator"],
        "made_as": _made_as(order, seed),
    }


def _made_as(order: SamplerState, seed: int) -> dict[str, Any]:
    return {"seed": seed, **order.fingerprint()}


class Resumption:
    """A state that has been loaded, at which the next pass over ``loader`` begins.

    >>> loader = ["a", "b", "c"]
    >>> state = state_after(None, loader, seed=0, epoch=4)
    >>> list(Resumption(state | {"batches": 2}, loader, seed=0).begin())
    ['c']
    """

    def __init__(self, state: Mapping[str, Any], loader: Any, seed: int) -> None:
        self._loader = loader
        self._order = SamplerState(loader)
        now = _made_as(self._order, seed)
        _check(state, now, self._order.fingerprint_that_may_change())
        self.state: dict[str, Any] = _on_host(dict(state))
        self.epoch: int = state["epoch"]
        self.start: dict[str, Any] = self.state["start"]
        position = Position(**{field.name: self.state[field.name] for field in fields(Position)})
        self.first = _shared_anew(position, state["made_as"], now)

    def restore(self) -> None:
        """Put the samplers' epoch and torch's default generator where they were when the state was taken."""
        if self.start["sampler_epoch"] is not None:
            self._order.set_epoch(self.start["sampler_epoch"])
        if self.state["default_generator"] is not None and self._order.default_generator() is not None:
            torch.set_rng_state(self.state["default_generator"])

    def give_up(self, epoch: int) -> None:
        if self.first.batches:
            warnings.warn(
                f"the state that was loaded is of epoch {self.epoch}, after {self.first.batches} batches; "
                f"set_epoch({epoch}) leaves out the rest: to go on there, begin at the loader's `epoch`",
                UserWarning,
                stacklevel=3,
            )

    def begin(self) -> Iterator[Any]:
        """Return the batches that are left, by passing over indices if there are any, else by pulling batches."""
        # The order was drawn from the default generator as it was then; training goes on with that of now.
        default = self.start["default_generator"] if self.first.drawn else None
        with torch.random.fork_rng(devices=[], enabled=default is not None):
            if default is not None:
                torch.set_rng_state(default)
            if self.first.loader is not None:
                self._loader.load_state_dict(copy.deepcopy(self.first.loader))
                return iter(self._loader)
            batches, missing = self._passed_over() if self._order.has_indices else self._pulled()
        if missing:
            del batches  # and its workers with it
            raise ValueError(
                f"the state was taken after {self.first.batches} batches of epoch {self.epoch}, and the loader has "
                f"{self.first.batches - missing}: give it the data that it had, or begin anew with a PrefetchLoader "
                "that has loaded no state"
            )
        return batches

    def _passed_over(self) -> tuple[Iterator[Any], int]:
        return self._order.after(self.start, samples=self.first.drawn, batches=self.first.batches)

    def _pulled(self) -> tuple[Iterator[Any], int]:
        self._order.put_back_generators(self.start)
        batches = iter(self._loader)
        return batches, self.first.batches - sum(1 for _ in islice(batches, self.first.batches))


def _on_host(state: Any) -> Any:
    """``torch.load`` may have put all tensors on a device, where no state of a CPU generator can be."""
    return map_movable(lambda leaf, _: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, state)


def _shared_anew(position: Position, then: Mapping[str, Any], now: Mapping[str, Any]) -> Position:
    """The position in the share of the epoch that a rank has now; each sample keeps its place.

    Where the ranks cannot have come equally far, they begin at the last place at which they have.
    """
    if (then["ranks"], then["batch_size"]) == (now["ranks"], now["batch_size"]):
        return position
    drawn, samples = (count * then["ranks"] // now["ranks"] for count in (position.drawn, position.samples))
    return Position(drawn // now["batch_size"], drawn, samples)


KEYS = frozenset(state_after(None, [], seed=0, epoch=0))


def _check(state: Mapping[str, Any], now: Mapping[str, Any], may_change: set[str]) -> None:
    if state.get("format") != FORMAT or not state.keys() >= KEYS:
        raise ValueError(
            f"the state must be one of PrefetchLoader.state_dict() of format {FORMAT}; got format "
            f"{state.get('format')!r} with keys {sorted(map(str, state))}: take it with this version of fastload"
        )
    then = state["made_as"]
    others = [name for name in now if name not in may_change and then.get(name) != now[name]]
    if others:
        was, has = (", ".join(f"{name}={fingerprint.get(name)!r}" for name in others) for fingerprint in (then, now))
        raise ValueError(
            f"the state was taken with {was}, and this loader has {has}: its samples, their order or augmentations "
            "would be others; make it as it was"
        )
