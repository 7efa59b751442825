"""``TrainingState``: what each subject of ``step`` trains: a model, optimizer and scheduler of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

__all__ = ["SEED", "LossFn", "TrainingState"]

SEED = 0
LEARNING_RATE = 1e-4

LossFn = Callable[[Tensor, Tensor], Tensor]  # outputs and targets to a loss


@dataclass(frozen=True)
class TrainingState:
    """A copy of the model with its optimizer and scheduler; ``loss_fn`` is None if the model returns losses itself."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler
    loss_fn: LossFn | None
    precision: str
    device: torch.device

    @classmethod
    def of(cls, model: nn.Module, loss_fn: LossFn | None, precision: str, device: torch.device) -> TrainingState:
        model = copy.deepcopy(model).to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
        return cls(model, optimizer, LambdaLR(optimizer, _warm_up), loss_fn, precision, device)

    def begin(self, weights: dict[str, Tensor]) -> None:
        """Set the model to ``weights`` and PyTorch's random numbers to the seed."""
        self.model.load_state_dict(weights)
        torch.manual_seed(SEED)

    def loss(self, model: Callable[..., Any], inputs: Any, targets: Any) -> Tensor:
        """Return the loss of ``model``, which a subject may have wrapped."""
        if self.loss_fn is not None:
            return self.loss_fn(model(inputs), targets)
        losses: dict[str, Tensor] = model(inputs, targets)
        return reduce(torch.add, losses.values())


def _warm_up(update: int) -> float:
    return min(1.0, (update + 10) / 100)
