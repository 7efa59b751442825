"""``Window``: a number of training steps, timed after a warm-up, with the device idle at both ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import psutil
import torch

from fastload.bench.harness.turns import Figure, Figures
from fastload.streams import Timestamp

__all__ = [
    "Batches",
    "Step",
    "Window",
    "allocated_gib",
    "cpu_seconds",
    "cpu_seconds_since",
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
    """What a window of training steps took.

    Attributes:
        steps_per_s: steps per second.
        peak_gib: the most device memory allocated meanwhile; None on the CPU, where it is not counted.
        cpu_s_per_step: processor time a step, of this process and its workers.
        waits: for each step, the seconds that the training thread spent in asking for its batch.
        gaps: for each step, the seconds that the device stood between the step before and the batch.
    """

    steps_per_s: float
    peak_gib: float | None
    cpu_s_per_step: float
    waits: Sequence[float]
    gaps: Sequence[float]

    def img_per_s(self, batch: int) -> Figures:
        """Return the figure of the suites that compare speeds of training, in batches of ``batch`` images."""
        beside = {
            "peak_gib": self.peak_gib,
            "cpu_ms_per_img": 1e3 * self.cpu_s_per_step / batch,
            **_percentiles("wait", self.waits),
            **_percentiles("gap", self.gaps),
        }
        return {"img_per_s": Figure(batch * self.steps_per_s, beside)}


def timed_window(step: Step, batches: Batches, *, warm_up: int, steps: int, device: torch.device) -> Window:
    """Time ``steps`` training steps after ``warm_up`` others, then close ``batches``, which ends their workers."""
    with closing(batches):
        run(step, batches, warm_up)
        synchronize(device)
        reset_peak(device)
        asked, given = [], []
        cpu, start = cpu_seconds(), time.perf_counter()
        asked.append(Timestamp(device))
        for inputs, targets in islice(batches, steps):
            given.append(Timestamp(device))
            step(inputs, targets)
            asked.append(Timestamp(device))
        synchronize(device)
        seconds, used = time.perf_counter() - start, cpu_seconds_since(cpu)
        return Window(
            steps / seconds,
            peak_gib(device),
            used / steps,
            waits=[got.seconds - when.seconds for when, got in zip(asked, given, strict=False)],
            gaps=[when.seconds_to(got) for when, got in zip(asked, given, strict=False)],
        )


def run(step: Step, batches: Batches, steps: int) -> list[torch.Tensor]:
    """Return the losses of the next ``steps`` steps, left on the device."""
    return [step(inputs, targets) for inputs, targets in islice(batches, steps)]


def cpu_seconds() -> dict[psutil.Process, float]:
    """Return the processor time that this process, and each that it started and that still runs, has used."""
    this, used = psutil.Process(), {}
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            times = process.cpu_times()
            used[process] = times.user + times.system
    return used


def cpu_seconds_since(start: Mapping[psutil.Process, float]) -> float:
    """Return what those that still run have used since ``start``; others, such as idle compilers, may have ended."""
    return sum(used - start.get(process, 0.0) for process, used in cpu_seconds().items())


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


def _percentiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the largest, in milliseconds."""
    p50, p99, most = np.percentile(seconds, [50, 99, 100])
    return {f"{name}_p50_ms": 1e3 * p50, f"{name}_p99_ms": 1e3 * p99, f"{name}_max_ms": 1e3 * most}


def peak_gib(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated(device) / GIB if device.type == "cuda" else None
