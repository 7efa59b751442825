"""What came of an update: known to the device at once, and to the host when the device has come to it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastload.streams import AsyncReadback
from fastload.training.gated_optimizer import GatedOptimizer
from fastload.training.nonfinite import LossRecord

__all__ = ["UpdateResult"]


class UpdateResult:
    """Which gates skipped an update, and whether a loss of its window, ``seen``, was not finite.

    ``skipped`` says on the device whether all gates did: a scalar of 0 or 1, or None if none can. ``known`` says
    whether ``read`` has to wait for nothing.
    """

    def __init__(self, gates: Sequence[GatedOptimizer], nonfinite: Tensor | None, seen: list[LossRecord]) -> None:
        self.seen = seen
        flags = [*(gate.skipped for gate in gates), nonfinite]
        told = {id(flag): flag for flag in flags if flag is not None}  # often one for all
        self._places = [None if flag is None else list(told).index(id(flag)) for flag in flags]
        self._readout = AsyncReadback(_in_one(list(told.values()))) if told else None
        self.known = self._readout is None or self._readout.at_once
        skipped = [flag for flag in flags[:-1] if flag is not None]
        self.skipped = torch.stack(skipped).amin() if len(skipped) > 1 else next(iter(skipped), None)

    def read(self) -> tuple[list[bool], bool]:
        """Return for each gate whether it skipped the update, and whether a loss was not finite."""
        values = self._readout.read() if self._readout else []
        *skipped, nonfinite = [place is not None and values[place] > 0 for place in self._places]
        return skipped, nonfinite


def _in_one(flags: list[Tensor]) -> Tensor:
    return torch.stack(flags) if len(flags) > 1 else flags[0].reshape(1)  # the latter launches nothing
