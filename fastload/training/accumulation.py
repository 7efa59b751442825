"""``AccumulationWindow``: the batches of one update, and how much each counts in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["AccumulationWindow"]


class AccumulationWindow:
    """Up to ``accumulate`` batches whose gradients are averaged into one update.

    >>> window = AccumulationWindow(2)
    >>> window.begin_batch(left=1)  # the last batch of an epoch has the window to itself
    >>> window.size, window.is_last
    (1, True)

    Without ``items`` all batches count alike: each loss is divided by ``size``, the batches expected when the window
    began, before its backward pass; if it ends with another number, the gradients are scaled to their average. With
    ``items`` each loss is multiplied by its batch's items, and at the window's end the gradients are divided by the sum
    of all ranks' items. ``is_last`` says whether the batch that has begun is the window's last.

    A batch counts once ``end_batch`` is called; one that fails before leaves no trace.
    """

    def __init__(self, accumulate: int) -> None:
        self.accumulate = accumulate
        self.reset()

    def reset(self) -> None:
        """Begin a new window."""
        self.size, self.batches = self.accumulate, 0
        self.items: Tensor | float | None = None
        self.is_last = False

    def begin_batch(self, left: int | None, items: Tensor | float | None = None) -> None:
        """Begin a batch; ``left`` batches remain in the epoch, this one included; None if that is unknown."""
        if self.batches > 0 and (items is None) is not (self.items is None):
            raise TypeError(f"either all batches of a window have items, or none; got items={items!r}")
        if self.batches == 0:
            self.size = self.accumulate if left is None else min(self.accumulate, left)
        self.is_last = left == 1 or self.batches + 1 >= self.accumulate

    def weighted(self, loss: Tensor, items: Tensor | float | None) -> Tensor:
        """Return the loss to run the backward pass on."""
        if items is not None:
            return loss * items
        # A division by 1 changes nothing, but still launches kernels, forward and backward.
        return loss if self.size == 1 else loss / self.size

    def end_batch(self, items: Tensor | float | None) -> None:
        """Count a batch whose backward pass has run."""
        self.batches += 1
        if items is not None:
            self.items = (0 if self.items is None else self.items) + items  # a new tensor: the user may reuse theirs

    def gradient_factor(self, items: Tensor | float | None, ranks: int) -> Tensor | float | None:
        """Return what to multiply the gradients by at the window's end; None for 1.

        ``items`` is the sum over all ranks. If it is not above 0 the factor is 0.
        """
        if isinstance(items, Tensor):
            return torch.where(items > 0, ranks / items, 0)
        if items is not None:
            return ranks / items if items > 0 else 0.0
        return None if self.batches == self.size else self.size / self.batches

    def state_dict(self) -> dict[str, Any]:
        return {"size": self.size, "batches": self.batches, "items": self.items}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        items = state["items"]
        self.size, self.batches = state["size"], state["batches"]
        self.items = items.to(device) if isinstance(items, Tensor) else items
