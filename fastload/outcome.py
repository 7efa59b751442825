"""What came of an update: known to the device at once, and to the host when the device has come to it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastload.gate import Gate
from fastload.nonfinite import Seen
from fastload.streams import Readout

__all__ = ["Outcome"]


class Outcome:
    """Which gates skipped an update, and whether a loss of its window, ``seen``, was not finite.

    ``skipped`` says on the device whether all gates did: a scalar of 0 or 1, or None if none can. ``known`` says
    whether ``read`` has to wait for nothing.
    """

    def __init__(self, gates: Sequence[Gate], nonfinite: Tensor | None, seen: list[Seen]) -> None:
        self.seen = seen
        flags = [gate.skipped for gate in gates]
        self._flagged = [flag is not None for flag in (*flags, nonfinite)]
        present = [flag for flag in (*flags, nonfinite) if flag is not None]
        self._readout = Readout(torch.stack(present)) if present else None
        self.known = self._readout is None or self._readout.at_once
        skipped = [flag for flag in flags if flag is not None]
        self.skipped = torch.stack(skipped).amin() if len(skipped) > 1 else next(iter(skipped), None)

    def read(self) -> tuple[list[bool], bool]:
        """Return for each gate whether it skipped the update, and whether a loss was not finite."""
        values = iter(self._readout.read() if self._readout else [])
        *skipped, nonfinite = [is_flagged and next(values) > 0 for is_flagged in self._flagged]
        return skipped, nonfinite
