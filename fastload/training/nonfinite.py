"""``NonfiniteMonitor``: finds losses that are inf or NaN, on the device, so that the host need not wait for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["REACTIONS", "LossRecord", "NonfiniteMonitor", "describe"]

REACTIONS = ("raise", "skip", "ignore")


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


def describe(records: Sequence[LossRecord], update: int, *, skipped: bool) -> str:
    """Return the error text for a window in which a loss, on this rank or another, was not finite."""
    bad = [record for record in records if not torch.isfinite(record.loss)]
    where = "; ".join(map(str, bad)) if bad else "on another rank, and finite on this one"
    weights = "the weights are as before it" if skipped else "the weights have taken it: go back to those saved before"
    return f"the loss of update {update} is not finite: {where}. The update is not counted; {weights}"
