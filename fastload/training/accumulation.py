"""``AccumulationWindow``: the batches of one update, and how much each counts in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fastload.training.ranks import Ranks

__all__ = ["AccumulationWindow"]


class AccumulationWindow:
    """Up to ``size`` batches whose gradients are averaged into one update.

    >>> window = AccumulationWindow(2)
    >>> window.begin_batch(left=1)  # the last batch of an epoch has the window to itself
    >>> window.size, window.is_last
    (1, True)

    Without ``items`` all batches count alike: each loss is divided by ``size`` before its backward pass. With ``items``
    each loss is multiplied by its batch's items, and at the window's end the gradients are divided by the sum of all
    ranks' items.
    """

    def __init__(self, accumulate: int) -> None:
        self.accumulate = accumulate
        self.reset()

    def reset(self) -> None:
        """Begin a new window."""
        self.size, self.batches = self.accumulate, 0
        self.items: Tensor | int | None = None

    def begin_batch(self, left: int | None) -> None:
        """Shorten a new window to the batches ``left`` in the epoch, this one included; None if that is unknown."""
        if self.batches == 0 and left is not None:
            self.size = min(self.accumulate, left)

    @property
    def is_last(self) -> bool:
        """Whether the next batch completes the window."""
        return self.batches + 1 == self.size

    def weighted(self, loss: Tensor, items: Tensor | int | None) -> Tensor:
        """Return the loss to run the backward pass on."""
        if self.batches > 0 and (items is None) is not (self.items is None):
            raise TypeError(f"either all batches of a window have items, or none; got items={items!r}")
        if items is not None:
            return loss * items
        # A division by 1 changes nothing, but still launches kernels, forward and backward.
        return loss if self.size == 1 else loss / self.size

    def end_batch(self, items: Tensor | int | None) -> None:
        """Count a batch whose backward pass has run."""
        self.batches += 1
        if items is not None:
            self.items = items if self.items is None else self.items + items

    def gradient_factor(self, ranks: Ranks) -> Tensor | float | None:
        """Return what to multiply the gradients by at the window's end; None for 1."""
        if self.items is not None:
            return ranks.count / ranks.sum(self.items)
        return self.size / self.batches if self.batches < self.size else None

    def state_dict(self) -> dict[str, Any]:
        return {"size": self.size, "batches": self.batches, "items": self.items}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        items = state["items"]
        self.size, self.batches = state["size"], state["batches"]
        self.items = items.to(device) if isinstance(items, Tensor) else items
