"""The watch for losses that are inf or NaN: kept on the device, and told by the host when it knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["REACTIONS", "LossRecord", "NonfiniteMonitor"]

REACTIONS = ("raise", "skip", "ignore")


@dataclass(frozen=True, slots=True, eq=False)
class LossRecord:
    """A batch's loss and its terms, and the batch's number since training began and in its epoch, if known."""

    loss: Tensor
    terms: dict[str, Tensor]
    number: int
    place: int | None

    def __str__(self) -> str:
        terms = " + ".join(f"{name} {float(term):g}" for name, term in self.terms.items())
        place = "" if self.place is None else f", {self.place} of its epoch"
        return f"batch {self.number}{place}: loss {float(self.loss):g}" + (f" = {terms}" if terms else "")


class NonfiniteMonitor:
    """Sees the losses of a window, and gives one flag for all of them.

    >>> watch = NonfiniteMonitor()
    >>> watch.see(LossRecord(torch.tensor(0.5), {}, 1, None))
    >>> watch.see(LossRecord(torch.tensor(torch.inf), {}, 2, None))
    >>> watch.flag()
    tensor(1.)
    """

    def __init__(self) -> None:
        self.seen: list[LossRecord] = []
        self._poison: Tensor | None = None

    def see(self, batch: LossRecord) -> None:
        # 0 for a finite loss, else NaN, in one launch; isfinite takes several.
        poison = batch.loss * 0
        self._poison = poison if self._poison is None else self._poison + poison
        self.seen.append(batch)

    def flag(self) -> Tensor:
        """Return a scalar of 1 if a loss seen was not finite, else 0; once a window."""
        assert self._poison is not None
        return self._poison.ne_(0).float()

    def forget(self) -> None:
        """Begin a new window."""
        self.seen, self._poison = [], None

    def state_dict(self) -> dict[str, Any]:
        seen = [
            {"loss": each.loss, "terms": each.terms, "number": each.number, "place": each.place} for each in self.seen
        ]
        return {"seen": seen}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        self.forget()
        for each in state["seen"]:
            terms = {name: term.to(device) for name, term in each["terms"].items()}
            self.see(LossRecord(each["loss"].to(device), terms, each["number"], each["place"]))


def describe(seen: list[LossRecord], update: int, *, skipped: bool) -> str:
    """Tell of a window whose losses, on this rank or another, were not all finite."""
    bad = [batch for batch in seen if not torch.isfinite(batch.loss)]
    where = "; ".join(map(str, bad)) if bad else "on another rank, and finite on this one"
    after = "the weights are as before it" if skipped else "the weights have taken it: go back to those saved before"
    return f"the loss of update {update} is not finite: {where}. The update counts for nothing; {after}"
