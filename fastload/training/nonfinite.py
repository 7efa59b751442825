"""``NonfiniteMonitor``: finds losses and gradients that are inf or NaN on the device; the host need not wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastload.training.ranks import Ranks, local_part
from fastload.training.tensors import real_view

__all__ = [
    "OVERFLOWS_IN_A_ROW",
    "REACTIONS",
    "LossRecord",
    "NonfiniteFlags",
    "NonfiniteMonitor",
    "describe",
    "describe_standstill",
]

REACTIONS = ("raise", "skip", "ignore")
OVERFLOWS_IN_A_ROW = 100  # a scale of 2**16 halved as often is nothing, so the scale is not at fault


@dataclass(frozen=True, slots=True, eq=False)
class LossRecord:
    """The loss of one batch, its terms, and which batch it was.

    ``number`` counts from 1 since training began; ``place`` from 0 in the epoch, None if that is unknown.
    """

    loss: Tensor
    terms: dict[str, Tensor]
    number: int
    place: int | None

    def __str__(self) -> str:
        terms = " + ".join(f"{name} {float(term):g}" for name, term in self.terms.items())
        place = "" if self.place is None else f", {self.place} of its epoch"
        return f"batch {self.number}{place}: loss {float(self.loss):g}" + (f" = {terms}" if terms else "")


class NonfiniteFlags:
    """Whether an update's window is unfit, and why: flags on the device, float32 scalars of 1 or 0.

    >>> flags = NonfiniteFlags(torch.tensor(0.0), [torch.tensor([torch.nan])], None, Ranks([], torch.device("cpu")))
    >>> flags.veto, flags.read(flags.vector.tolist())
    (tensor(1.), {'gradients'})

    ``loss`` and ``items`` are flags, the latter None if the batches have none. ``gradients`` are checked here; with
    several ranks, a flag that is 1 on one of them becomes 1 on all. ``vector`` holds ``veto``, which is 1 if the window
    is unfit for any reason, and the flags that were given.
    """

    def __init__(self, loss: Tensor, gradients: Iterable[Tensor], items: Tensor | None, ranks: Ranks) -> None:
        self.vector = torch.stack([loss, loss] if items is None else [torch.maximum(loss, items), loss, items])
        self.veto = self.vector[0]
        _flag_gradients(gradients, self.veto)
        ranks.any(self.vector)

    def read(self, values: Sequence[float]) -> set[str]:
        """Return what makes the window unfit: ``"loss"``, ``"items"``, ``"gradients"``; ``values`` are the vector's."""
        veto, *flags = values
        given = {cause for cause, flag in zip(("loss", "items"), flags, strict=False) if flag > 0}
        return given or ({"gradients"} if veto > 0 else set())


class NonfiniteMonitor:
    """Collects the losses of one accumulation window, and flags the window if one of them is inf or NaN.

    >>> monitor = NonfiniteMonitor()
    >>> monitor.add(LossRecord(torch.tensor(0.5), {}, 1, None))
    >>> monitor.add(LossRecord(torch.tensor(torch.inf), {}, 2, None))
    >>> monitor.flag()
    tensor(1.)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin a new window."""
        self.records: list[LossRecord] = []
        self._zero_or_nan: Tensor | None = None

    def add(self, record: LossRecord) -> None:
        # 0 for a finite loss, else NaN, in one launch; isfinite takes several.
        zero_or_nan = record.loss * 0
        self._zero_or_nan = zero_or_nan if self._zero_or_nan is None else self._zero_or_nan + zero_or_nan
        self.records.append(record)

    def flag(self) -> Tensor:
        """Return a float32 scalar on the device: 1 if a loss was not finite, else 0. Call it once a window."""
        assert self._zero_or_nan is not None
        return self._zero_or_nan.ne_(0).float()

    def state_dict(self) -> dict[str, Any]:
        seen = [
            {"loss": each.loss, "terms": each.terms, "number": each.number, "place": each.place}
            for each in self.records
        ]
        return {"seen": seen}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        self.reset()
        for each in state["seen"]:
            terms = {name: term.to(device) for name, term in each["terms"].items()}
            self.add(LossRecord(each["loss"].to(device), terms, each["number"], each["place"]))


@torch.no_grad()
def _flag_gradients(gradients: Iterable[Tensor], flag: Tensor) -> None:
    """Set ``flag`` to 1 if an element of the gradients is inf or NaN; of sharded ones this rank's part is checked."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for gradient in gradients:
        values = gradient if type(gradient) is Tensor else local_part(gradient)
        values = real_view(values._values() if values.is_sparse else values)  # noqa: SLF001
        groups[values.device, values.dtype].append(values)
    for (device, _), group in groups.items():
        # GradScaler's check, with a scale of 1: one launch for many tensors. It writes back what it reads, yet it is
        # exact, and takes less of the host's time than norms, which are a tensor each.
        found = flag if device == flag.device else torch.zeros((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(group, found, torch.ones((), device=device))
        if found is not flag:
            flag.copy_(torch.maximum(flag, found.to(flag.device, non_blocking=True)))


def describe(causes: Collection[str], records: Sequence[LossRecord], update: int, *, skipped: bool) -> str:
    """Return the error text for a window that is unfit, on this rank or another, for these ``causes``."""
    weights = "the weights are as before it" if skipped else "the weights have taken it: go back to those saved before"
    return f"{_fault(causes, records, update)}. The update is not counted; {weights}"


def describe_standstill(update: int) -> str:
    """Return the error text for a scaler that has skipped ``OVERFLOWS_IN_A_ROW`` updates up to this one."""
    return (
        f"the scaler has skipped {OVERFLOWS_IN_A_ROW} updates in a row, up to update {update}: the losses are finite, "
        "but their gradients are inf or NaN at any scale. torch.autograd.set_detect_anomaly(True) shows the operation "
        "that they come from"
    )


def _fault(causes: Collection[str], records: Sequence[LossRecord], update: int) -> str:
    if "loss" in causes:
        bad = [record for record in records if not torch.isfinite(record.loss)]
        where = "; ".join(map(str, bad)) if bad else "on another rank, and finite on this one"
        return f"the loss of update {update} is not finite: {where}"
    if "items" in causes:
        return f"the items of update {update} must add up to more than 0; got no item in {_batches(records)}"
    return (
        f"the gradients of update {update} are not finite, though its losses are: {_batches(records)}. "
        "torch.autograd.set_detect_anomaly(True) shows the operation that they come from"
    )


def _batches(records: Sequence[LossRecord]) -> str:
    first, last = records[0].number, records[-1].number
    return f"batch {first}" if first == last else f"batches {first} to {last}"
