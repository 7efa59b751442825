"""``Totals``: sums over all batches of a loader, of which only the last are kept one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fastload.stats.batch_times import DEVICE_STAGES, HOST_STAGES, BatchTimes, Span
from fastload.stats.stats import Period, Timing

__all__ = ["Totals"]

FIGURES = [
    "batches", "samples", "bytes", "step", "lead", "ready", "step_cpu",
    *(f"host {name}" for name in HOST_STAGES), *(f"cpu {name}" for name in HOST_STAGES),
    *(f"device {name}" for name in DEVICE_STAGES),
]  # fmt: skip
AT = {name: number for number, name in enumerate(FIGURES)}
NONE = Span(0.0, 0.0)


class Totals:
    """The sum and the maximum of each figure."""

    def __init__(self) -> None:
        self._sums = np.zeros(len(FIGURES))
        self._most = np.zeros(len(FIGURES))

    def add(self, batch: BatchTimes) -> None:
        host = [batch.host.get(name, NONE) for name in HOST_STAGES]
        device = [batch.device.get(name, NONE) for name in DEVICE_STAGES]
        row = np.array(
            [
                1, batch.samples, batch.bytes, batch.step or 0.0, batch.lead, batch.ready, batch.step_cpu,
                *[span.end - span.begin for span in host], *[span.cpu for span in host],
                *[span.end - span.begin for span in device],
            ]
        )  # fmt: skip
        self._sums += row
        np.maximum(self._most, row, out=self._most)

    def over(self, kept: Period) -> Period:
        """The window of the batches that are ``kept``, with sums, means and maxima of all."""
        if not self._sum("batches"):
            return kept
        return replace(
            kept,
            batches=int(self._sum("batches")),
            samples=int(self._sum("samples")),
            bytes=int(self._sum("bytes")),
            seconds=self._sum("step"),
            step=self._timing("step", kept.step),
            stall=self._timing("device stall", kept.stall),
            next=self._timing("host next", kept.next),
            lead=self._timing("lead", kept.lead),
            ready=self._mean("ready"),
            step_cpu=self._mean("step_cpu"),
            host={name: self._timing(f"host {name}", timing) for name, timing in kept.host.items()},
            cpu={name: self._mean(f"cpu {name}") for name in kept.cpu},
            device={name: self._timing(f"device {name}", timing) for name, timing in kept.device.items()},
        )

    def _sum(self, name: str) -> float:
        return float(self._sums[AT[name]])

    def _mean(self, name: str) -> float:
        return self._sum(name) / self._sum("batches")

    def _timing(self, name: str, kept: Timing) -> Timing:
        return replace(kept, mean=self._mean(name), most=float(self._most[AT[name]]))
