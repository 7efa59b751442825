"""``Window``: a number of training steps, timed after a warm-up, with the device idle at both ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from fastload.bench.harness.turns import Figure, Figures

__all__ = [
    "Batches",
    "Step",
    "Window",
    "allocated_gib",
    "outside_gib",
    "peak_gib",
    "reset_peak",
    "run",
    "synchronize",
    "timed_window",
]

Batches = Generator[tuple[Any, Any], None, None]  # inputs and targets; images and labels in most suites
Step = Callable[[Any, Any], torch.Tensor]  # inputs and targets to the loss

GIB = 1024**3


@dataclass(frozen=True)
class Window:
    """Steps per second, and the most device memory allocated meanwhile; None on the CPU, where it is not counted."""

    steps_per_s: float
    peak_gib: float | None

    def img_per_s(self, batch: int) -> Figures:
        """Return the figure of the suites that compare speeds of training, in batches of ``batch`` images."""
        return {"img_per_s": Figure(batch * self.steps_per_s, {"peak_gib": self.peak_gib})}


def timed_window(step: Step, batches: Batches, *, warm_up: int, steps: int, device: torch.device) -> Window:
    """Time ``steps`` training steps after ``warm_up`` others, then close ``batches``, which ends their workers."""
    with closing(batches):
        run(step, batches, warm_up)
        synchronize(device)
        reset_peak(device)
        start = time.perf_counter()
        run(step, batches, steps)
        synchronize(device)
        return Window(steps / (time.perf_counter() - start), peak_gib(device))


def run(step: Step, batches: Batches, steps: int) -> list[torch.Tensor]:
    """Return the losses of the next ``steps`` steps, left on the device."""
    return [step(inputs, targets) for inputs, targets in islice(batches, steps)]


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def allocated_gib(device: torch.device) -> float:
    return torch.cuda.memory_allocated(device) / GIB if device.type == "cuda" else 0.0


def outside_gib(device: torch.device) -> float:
    """Return how much device memory is in use outside of PyTorch's allocator, such as a decoder's buffers."""
    if device.type != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info(device)
    return (total - free - torch.cuda.memory_reserved(device)) / GIB


def peak_gib(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated(device) / GIB if device.type == "cuda" else None
