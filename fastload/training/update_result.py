"""``UpdateResult``: which optimizers skipped an update; on the device now, on the host once the device gets there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastload.streams import AsyncReadback
from fastload.training.gated_optimizer import GatedOptimizer
from fastload.training.nonfinite import LossRecord

__all__ = ["UpdateResult"]


class UpdateResult:
    """The flags of one update, made right after its kernels are queued; making it does not wait for them.

    >>> optimizer = GatedOptimizer(torch.optim.SGD([torch.zeros(1, requires_grad=True)]), undo=True)
    >>> result = UpdateResult([optimizer], nonfinite=torch.tensor(1.0), losses=[])
    >>> result.read()  # this optimizer has skipped nothing, but a loss was not finite
    ([False], True)

    ``nonfinite`` is the flag of a loss that was inf or NaN, or None if losses are not checked; ``losses`` are those of
    the update's window. ``skipped`` is a scalar on the device: 1 if all optimizers skipped the update, else 0; None if
    none can skip. ``known`` says whether ``read`` returns without a wait.
    """

    def __init__(
        self, optimizers: Sequence[GatedOptimizer], nonfinite: Tensor | None, losses: list[LossRecord]
    ) -> None:
        self.losses = losses
        flags = [*(optimizer.skipped for optimizer in optimizers), nonfinite]
        unique = {id(flag): flag for flag in flags if flag is not None}  # optimizers often share one flag
        self._indices = [None if flag is None else list(unique).index(id(flag)) for flag in flags]
        self._readback = AsyncReadback(_as_vector(list(unique.values()))) if unique else None
        self.known = self._readback is None or self._readback.at_once
        skipped = [flag for flag in flags[:-1] if flag is not None]
        self.skipped = torch.stack(skipped).amin() if len(skipped) > 1 else next(iter(skipped), None)

    def read(self) -> tuple[list[bool], bool]:
        """Return whether each optimizer skipped the update, and whether a loss was not finite."""
        values = self._readback.read() if self._readback else []
        *skipped, nonfinite = [index is not None and values[index] > 0 for index in self._indices]
        return skipped, nonfinite


def _as_vector(flags: list[Tensor]) -> Tensor:
    return torch.stack(flags) if len(flags) > 1 else flags[0].reshape(1)  # a reshape launches nothing
