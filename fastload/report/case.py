"""``Case``: what was measured of a loader and how it is set up, and what follows from both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from fastload.report.setup import Setup
from fastload.stats.stats import Period, Stats

__all__ = ["Case"]

SHARED = 0.5  # of a step


@dataclass(frozen=True)
class Case:
    """Stats and set-up, to be judged."""

    stats: Stats
    setup: Setup

    @property
    def window(self) -> Period:
        return self.stats.recent

    @property
    def most(self) -> float:
        """By what factor training could get faster if its input cost nothing."""
        return 1 / max(1e-3, 1 - self.window.stalled)

    @property
    def consumer(self) -> str:
        """What waits for input."""
        return "GPU" if self.setup.has_device else "training thread"

    @cached_property
    def stage(self) -> str:
        """The stage of the input that takes longest."""
        return max(self.stages, key=self.stages.__getitem__, default="load")

    @cached_property
    def stages(self) -> dict[str, float]:
        """Seconds a batch of the stages, of which the slowest sets the pace.

        The host prepares a batch while it queues the copy and the transform. What the device takes for these counts by
        itself; where the device is the host, it is the same time.
        """
        window = self.window
        times = {name: window.host[name].mean for name in ("load", "pin", "decode", "prepare") if name in window.host}
        device = {name: timing.mean for name, timing in window.device.items()}
        if not self.setup.has_device and device:
            times.pop("prepare", None)
        return times | {name: max(times.get(name, 0.0), seconds) for name, seconds in device.items()}

    @property
    def computing(self) -> float:
        """In which part of their time those who load compute: the workers, or the thread that loads by itself."""
        usage = self.stats.workers
        if usage is not None:
            return 1.0 if usage.busy is None else usage.busy  # before the second look it is not known
        load = self.window.host.get("load")
        return self.window.cpu["load"] / load.mean if load is not None and load.mean else 1.0

    @property
    def shares_the_interpreter(self) -> bool:
        """Whether loading computes for most of each step in the training process, which has one interpreter."""
        return self.setup.workers == 0 and self.window.cpu.get("load", 0.0) > SHARED * self.window.step.mean

    @property
    def free_cores(self) -> float:
        """How many cores neither the workers nor this process use."""
        usage = self.stats.workers
        loading = sum(usage.cpu) if usage is not None and usage.cpu else float(self.setup.workers or 0)
        return max(0.0, self.setup.cores - loading - self.window.step_cpu / self.window.step.mean)

    @property
    def workers_needed(self) -> int:
        """How many workers would keep up with steps that never wait, if each had a core."""
        window, workers = self.window, self.setup.workers or 0
        step = max(window.step.mean - window.stall.mean, 1e-9)
        return math.ceil((workers * window.step.mean if workers else window.host["load"].mean) / step)
