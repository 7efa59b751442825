"""``Stats``: what was measured of a loader, as numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from fastload.stats.batch_times import BatchTimes
from fastload.stats.workers import WorkerUsage

__all__ = ["Period", "Stats", "Timing"]


@dataclass(frozen=True)
class Timing:
    """Seconds a batch: mean, median, 99th percentile and the most."""

    mean: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    most: float = 0.0

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Timing:
        values = np.fromiter(seconds, float)
        if not values.size:
            return cls()
        p50, p99 = np.quantile(values, [0.5, 0.99])
        return cls(float(values.mean()), float(p50), float(p99), float(values.max()))


@dataclass(frozen=True)
class Period:
    """What was measured of some batches in a row; times are in seconds a batch.

    ``step``: from one batch's arrival to the next's, on the device's clock. ``stall``: for how long the device waited
    for its input in it. ``next``: for how long the training thread was in ``next()``. ``lead``: by how much it was
    ahead of the device. ``ready``: how many batches waited for it. ``host`` and ``cpu``: wall time and processor time
    of the stages on the host; ``device``: of those on the device. ``step_cpu`` is the processor time of the whole
    process in a step. The first batch of a pass, for which workers start, is left out of all of them.
    """

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    seconds: float = 0.0
    step: Timing = field(default_factory=Timing)
    stall: Timing = field(default_factory=Timing)
    next: Timing = field(default_factory=Timing)
    lead: Timing = field(default_factory=Timing)
    ready: float = 0.0
    step_cpu: float = 0.0
    host: Mapping[str, Timing] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)
    device: Mapping[str, Timing] = field(default_factory=dict)

    @property
    def stalled(self) -> float:
        """The part of the time in which the device waited for its input, from 0 to 1."""
        return min(1.0, self.stall.mean / self.step.mean) if self.step.mean else 0.0

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def copy_gigabytes_per_second(self) -> float:
        """The speed of the copies to the device, in 10**9 bytes a second; 0 where nothing was copied."""
        copy = self.device.get("copy")
        return self.bytes / self.batches / copy.mean / 1e9 if copy and copy.mean and self.batches else 0.0


@dataclass(frozen=True)
class Stats:
    """What a loader has measured of itself: ``recent`` batches, and all in ``total``.

    >>> Stats().recent.stalled
    0.0
    >>> sorted(Stats().scalars())[:3]
    ['input/batches_ready', 'input/next_ms', 'input/samples_per_second']

    ``startup`` has the seconds from ``iter()`` to the first batch of each pass; ``files`` how many files were decoded
    where, skipped or replaced by black images; ``workers`` what worker processes used, None without them; ``lines``
    in which part of its time the training thread was at which lines. Percentiles of ``total`` are of the last 1,000
    batches. ``asdict`` and :meth:`json` give all of it as plain numbers.
    """

    recent: Period = field(default_factory=Period)
    total: Period = field(default_factory=Period)
    startup: Sequence[float] = ()
    files: Mapping[str, int] = field(default_factory=dict)
    workers: WorkerUsage | None = None
    lines: Mapping[str, float] = field(default_factory=dict)
    rank: int = 0

    def scalars(self) -> dict[str, float]:
        """The recent figures that are worth a curve, by names for TensorBoard or Weights & Biases."""
        recent = self.recent
        return {
            "input/stalled": recent.stalled,
            "input/step_ms": recent.step.mean * 1e3,
            "input/next_ms": recent.next.mean * 1e3,
            "input/wait_p99_ms": recent.stall.p99 * 1e3,
            "input/batches_ready": recent.ready,
            "input/samples_per_second": recent.samples_per_second,
        }

    def json(self) -> str:
        """All figures as JSON."""
        return json.dumps(asdict(self), indent=2)


def window_of(batches: Sequence[BatchTimes]) -> Period:
    """The figures of some batches, each with its step."""
    steady = [batch for batch in batches if batch.step is not None]
    if not steady:
        return Period()
    names = dict.fromkeys(name for batch in steady for name in batch.host)
    on_device = dict.fromkeys(name for batch in steady for name in batch.device if name != "stall")
    count = len(steady)
    return Period(
        batches=count,
        samples=sum(batch.samples for batch in steady),
        bytes=sum(batch.bytes for batch in steady),
        seconds=sum(batch.step or 0.0 for batch in steady),
        step=Timing.of(batch.step or 0.0 for batch in steady),
        stall=Timing.of(batch.stall for batch in steady),
        next=Timing.of(batch.host["next"].seconds for batch in steady if "next" in batch.host),
        lead=Timing.of(batch.lead for batch in steady),
        ready=sum(batch.ready for batch in steady) / count,
        step_cpu=sum(batch.step_cpu for batch in steady) / count,
        host={name: Timing.of(each.host[name].seconds for each in steady if name in each.host) for name in names},
        cpu={name: sum(each.host[name].cpu for each in steady if name in each.host) / count for name in names},
        device={
            name: Timing.of(each.device[name].seconds for each in steady if name in each.device) for name in on_device
        },
    )
