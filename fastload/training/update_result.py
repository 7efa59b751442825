"""``UpdateResult``: which optimizers skipped an update; on the device now, on the host once the device gets there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastload.streams import AsyncReadback
from fastload.training.nonfinite import LossRecord, NonfiniteFlags

__all__ = ["UpdateResult"]


class UpdateResult:
    """The flags of one update, made right after its kernels are queued; making it does not wait for them.

    >>> from fastload.training.ranks import Ranks
    >>> nonfinite = NonfiniteFlags(torch.tensor(1.0), [], None, Ranks([], torch.device("cpu")))
    >>> result = UpdateResult([None], nonfinite, losses=[])
    >>> result.read()  # this optimizer has skipped nothing, but a loss was not finite
    ([False], {'loss'})

    ``flags`` are the optimizers' own, scalars of 1 for an update that was skipped, or None where none can be.
    ``nonfinite`` are the flags of the update's window, or None if it is not checked; ``losses`` are those of the
    window. ``skipped`` is a scalar on the device: 1 if all optimizers skipped the update, else 0; None if none can
    skip. ``known`` says whether ``read`` returns without a wait.
    """

    def __init__(
        self, flags: Sequence[Tensor | None], nonfinite: NonfiniteFlags | None, losses: list[LossRecord]
    ) -> None:
        self.losses = losses
        self._nonfinite = nonfinite
        veto = None if nonfinite is None else nonfinite.veto  # the first of its vector
        others = {id(flag): flag for flag in flags if flag is not None and flag is not veto}  # often one for all
        vectors = ([] if nonfinite is None else [nonfinite.vector]) + [flag.reshape(1) for flag in others.values()]
        places = {id(veto): 0} | {key: place - len(others) for place, key in enumerate(others)}
        self._places = [None if flag is None else places[id(flag)] for flag in flags]
        self._readback = AsyncReadback(torch.cat(vectors) if len(vectors) > 1 else vectors[0]) if vectors else None
        self.known = self._readback is None or self._readback.at_once
        skipped = [flag for flag in flags if flag is not None]
        self.skipped = torch.stack(skipped).amin() if len(skipped) > 1 else next(iter(skipped), None)

    def read(self) -> tuple[list[bool], set[str]]:
        """Return whether each optimizer skipped the update, and what made its window unfit."""
        values = self._readback.read() if self._readback else []
        skipped = [place is not None and values[place] > 0 for place in self._places]
        if self._nonfinite is None:
            return skipped, set()
        return skipped, self._nonfinite.read(values[: len(self._nonfinite.vector)])
