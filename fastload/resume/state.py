"""``state_after`` takes the state of a ``PrefetchLoader``; ``Resumption`` resumes a loader from it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import islice
from typing import Any

import torch

from fastload.resume.checksum import checksum_of
from fastload.resume.consumer_state import pull_from
from fastload.resume.form import check_form
from fastload.resume.position import Position, Progress, own_state
from fastload.resume.samplers import SamplerState
from fastload.structure.tree import map_movable, tree_flatten

__all__ = ["Resumption", "skipping", "state_after"]

FORMAT = 2


def state_after(progress: Progress | None, samplers: SamplerState, seed: int, epoch: int) -> dict[str, Any]:
    """Return the state after the batch that ``progress`` yielded last.

    If its pass has ended, or ``progress`` is None, it is the state before ``epoch``. After the last batch of a pass
    that has not ended, it is the state before the next epoch too, and its "finished" tells of the pass.
    """
    loader = samplers.loader
    in_order = getattr(loader, "in_order", True) or loader.num_workers <= 1
    start: Mapping[str, Any]
    finished: dict[str, int] | None = None
    if progress is None or progress.ended:
        position, start = Position(loader=own_state(loader)), samplers.start()
    elif progress.has_yielded_all:
        finished = {"epoch": progress.epoch, "batches": progress.yielded.batches}
        position, start, epoch = Position(loader=own_state(loader)), samplers.start(), progress.epoch + 1
    else:
        position, start, epoch = progress.yielded, progress.start, progress.epoch
        if not in_order:
            warnings.warn(
                f"the state is one from within an epoch of a loader with in_order=False and num_workers="
                f"{loader.num_workers}, whose batches come in another order each time: it cannot be loaded. Take it at "
                "an epoch's end, or make the loader with in_order=True",
                UserWarning,
                stacklevel=3,
            )
    return {
        "format": FORMAT,
        "epoch": epoch,
        **vars(position),
        "in_order": in_order,
        "finished": finished,
        "start": start,
        "default_generator": samplers.default_generator() if position.drawn else start["default_generator"],
        "made_as": _fingerprint(samplers, seed),
    }


def skipping(state: Mapping[str, Any], batches: int, samples: int, *, draws_anew: bool) -> dict[str, Any]:
    """``state`` after so many more batches, each of which has ``samples`` samples on this rank, none being read.

    ``draws_anew`` as of :class:`Resumption`.
    """
    drawn = batches * (state["made_as"]["batch_size"] or 1)
    return {
        **state,
        "batches": state["batches"] + batches,
        "drawn": state["drawn"] + drawn,
        "samples": state["samples"] + batches * samples,
        "loader": None,  # the wrapped loader's own state is that of its first batch
        "checksum": None,  # nobody has read the last of them
        "finished": None,
        "draws_anew": draws_anew,
    }


def _fingerprint(samplers: SamplerState, seed: int) -> dict[str, Any]:
    return {"seed": seed, **samplers.fingerprint()}


class Resumption:
    """A loaded state, at which the next pass over ``loader`` begins.

    >>> samplers = SamplerState(["a", "b", "c"])
    >>> state = state_after(None, samplers, seed=0, epoch=4)
    >>> list(Resumption(state | {"batches": 2}, samplers, seed=0).begin())
    ['c']

    ``epoch``, ``start`` and ``first`` are the epoch, what its order was drawn from, and the position to begin at.
    ``skipped`` is after how many batches a pass of whatever epoch begins, if no state was loaded; else None.
    ``draws_anew`` says that the epoch has not begun: its order is drawn at ``begin``, and torch's generator moves on.
    ``finished`` is the number of batches of the epoch before, by its number, if its last batch was yielded and its loop
    had not ended; else it is empty.

    Raises:
        TypeError: the state is no mapping.
        ValueError: it is not the state of a ``PrefetchLoader``, or of one whose samples or order differ.
    """

    def __init__(self, state: Mapping[str, Any], samplers: SamplerState, seed: int) -> None:
        self._loader = samplers.loader
        self._samplers = samplers
        check_form(state, FORMAT)
        now = _fingerprint(samplers, seed)
        _check_fit(state["made_as"], now, samplers.changeable())
        samplers.check_generators(state["start"])
        _check_own_state(state["loader"], samplers.loader)
        _check_order(state)
        self.state: dict[str, Any] = _to_cpu(dict(state))
        self.epoch: int = state["epoch"]
        finished = state["finished"]
        self.finished: dict[int, int] = {} if finished is None else {finished["epoch"]: finished["batches"]}
        self._batch_size: int | None = state["made_as"]["batch_size"]
        self.start: dict[str, Any] = self.state["start"]
        position = Position(**{field.name: self.state[field.name] for field in fields(Position)})
        self.first = _converted(position, state["made_as"], now)
        self.skipped: int | None = None
        self.draws_anew = state.get("draws_anew") is True

    def restore(self) -> None:
        """Set the samplers' epoch, and torch's default generator as it was when the state was taken."""
        if self.start["sampler_epoch"] is not None:
            self._samplers.set_epoch(self.start["sampler_epoch"])
        if self.state["default_generator"] is not None and self._samplers.default_generator() is not None:
            torch.set_rng_state(self.state["default_generator"])

    def give_up(self, epoch: int) -> None:
        """Warn that ``set_epoch(epoch)`` leaves out the rest of this epoch."""
        if self.first.batches:
            warnings.warn(
                f"the loaded state is of epoch {self.epoch}, after {self.first.batches} batches; set_epoch({epoch}) "
                "leaves out the rest of that epoch; to resume there, begin your loop at the loader's `epoch`",
                UserWarning,
                stacklevel=3,
            )

    def begin(self) -> Iterator[Any]:
        """Return the batches that are left; those before are skipped by index where possible, else read and dropped.

        Raises ValueError if there are fewer batches than the state has seen.
        """
        # The order is drawn from the default generator of the epoch's start; training continues with the present one.
        if self.draws_anew:
            self.start["default_generator"] = self._samplers.default_generator()
        default = self.start["default_generator"] if self.first.drawn and not self.draws_anew else None
        with torch.random.fork_rng(devices=[], enabled=default is not None):
            if default is not None:
                torch.set_rng_state(default)
            if self.first.loader is not None:
                self._loader.load_state_dict(copy.deepcopy(self.first.loader))
                return pull_from(self._loader)
            batches, missing = self._skipped_by_index() if self._samplers.has_indices else self._read_and_dropped()
        if missing:
            del batches  # which ends its workers
            raise ValueError(
                f"by the loaded state or by skip(), the pass begins after {self.first.batches} batches of epoch "
                f"{self.epoch}, and the loader has {self.first.batches - missing}: give it the data that it had, skip "
                "fewer, or start over with a new PrefetchLoader"
            )
        return batches

    def _skipped_by_index(self) -> tuple[Iterator[Any], int]:
        return self._samplers.resume(
            self.start, samples=self.first.drawn, batches=self.first.batches, batch_size=self._batch_size
        )

    def _read_and_dropped(self) -> tuple[Iterator[Any], int]:
        self._samplers.restore_generators(self.start)
        batches, missing, checksum = pull_from(self._loader), self.first.batches, None
        for batch in islice(batches, self.first.batches):
            missing -= 1
            if not missing and self.first.checksum is not None:
                checksum = checksum_of(tree_flatten(batch))
        if not missing and checksum != self.first.checksum:
            del batches  # which ends its workers
            raise ValueError(
                f"batch {self.first.batches} of epoch {self.epoch}, when it was read again, differs from the one that "
                "was yielded: the loader's order, or what it draws, differs each time, and what was yielded would come "
                "again. Let it draw from a generator that is seeded by the epoch (WebDataset: "
                "wds.detshuffle(..., seed=epoch)), or take the state at an epoch's end. To go on all the same, set "
                "state['checksum'] = None"
            )
        return batches, missing


def _to_cpu(state: Any) -> Any:
    """Move tensors to the CPU, where its generators need their states: ``torch.load`` may have put them on a device."""
    return map_movable(lambda leaf, _: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, state)


def _converted(position: Position, then: Mapping[str, Any], now: Mapping[str, Any]) -> Position:
    """Convert a rank's position to another number of ranks or batch size; each sample keeps its place in the epoch.

    If the samples so far do not divide evenly among the ranks, all begin at the last place where they would.
    """
    if (then["ranks"], then["batch_size"]) == (now["ranks"], now["batch_size"]):
        return position
    drawn, samples = (count * then["ranks"] // now["ranks"] for count in (position.drawn, position.samples))
    return Position(drawn // now["batch_size"], drawn, samples)


def _check_fit(then: Mapping[str, Any], now: Mapping[str, Any], changeable: set[str]) -> None:
    differing = [name for name in now if name not in changeable and then.get(name) != now[name]]
    if differing:
        was, has = (", ".join(f"{name}={values.get(name)!r}" for name in differing) for values in (then, now))
        raise ValueError(
            f"the state was taken with {was}, and this loader has {has}: its samples, their order or their "
            "augmentations would differ; make the loader as it was"
        )


def _check_order(state: Mapping[str, Any]) -> None:
    if state["batches"] and not state["in_order"]:
        raise ValueError(
            f"the state was taken after {state['batches']} batches of epoch {state['epoch']} of a loader with "
            "in_order=False, and which samples those had is not known: load one that was taken at an epoch's end, or "
            "make the loader with in_order=True before the state is taken"
        )


def _check_own_state(state: Any, loader: Any) -> None:
    if state is not None and not callable(getattr(loader, "load_state_dict", None)):
        raise ValueError(
            f"the state holds one of the wrapped loader, and {type(loader).__name__} has no load_state_dict: make the "
            "loader as it was"
        )
