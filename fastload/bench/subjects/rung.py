"""The rungs of ``ladder``: ways to feed and train a model, each with one change to the one before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

__all__ = ["RUNGS", "Rung"]


@dataclass(frozen=True)
class Rung:
    """How a model is fed and trained; the defaults are the baseline."""

    precision: str = "fp32"
    set_to_none: bool = False  # gradients dropped rather than zeroed
    non_blocking: bool = False  # batches in pinned memory, copied without waiting
    prefetch: bool = False  # uint8 to the device and normalised there, ahead of the step
    fused: bool = False  # model compiled, optimizer fused
    on_device: bool = False  # all batches on the device before training starts

    @property
    def dtype(self) -> torch.dtype:
        """The images' dtype; in the model autocast would round float32 to its own precision."""
        return torch.bfloat16 if self.fused else torch.float32


def _climb(changes: dict[str, Callable[[Rung], Rung]]) -> dict[str, Rung]:
    rung, rungs = Rung(), {}
    for name, change in changes.items():
        rungs[name] = rung = change(rung)
    return rungs


RUNGS = _climb(
    {
        "fp32": lambda rung: rung,
        "amp": lambda rung: replace(rung, precision="fp16"),
        "set_to_none": lambda rung: replace(rung, set_to_none=True),
        "non_blocking": lambda rung: replace(rung, non_blocking=True),
        "prefetch": lambda rung: replace(rung, prefetch=True),
        "bf16_fused": lambda rung: replace(rung, precision="bf16", fused=True),
        "limit": lambda rung: replace(rung, on_device=True),
    }
)
