"""``Examination``: what the doctor found, and the change to make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from fastload.arguments import resolved_device
from fastload.doctor.folder import FolderOfImages
from fastload.doctor.rates import (
    CopyRates,
    Offloaded,
    copy_rates,
    numbers_of_workers,
    offloaded,
    rate_of,
    with_workers,
)
from fastload.doctor.sample_times import SampleTimes, time_samples
from fastload.doctor.script import ScriptError, as_main
from fastload.doctor.target import ExaminedLoader
from fastload.report.case import Case
from fastload.report.report import Report
from fastload.report.setup import Setup
from fastload.report.verdict import Bound
from fastload.resume.wrapped_loader import torch_loader_in

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Examination", "examine"]

WORTH_IT = 1.05  # a change that makes training so much faster is worth its line


@dataclass(frozen=True)
class Examination:
    """What was measured of a target.

    ``report`` is of its training loop, None if none ran; ``seconds`` after how many that was ended before it had made
    all steps, None if it was not; ``sample`` of one sample in a worker; ``rates`` has samples a second of the loader
    alone by number of workers, 0 for loading in this process; ``moved`` what ``fl.offload`` would do. ``bad_files``
    cannot be decoded, and were left out.
    """

    name: str
    device: str
    setup: Setup
    report: Report | None = None
    sample: SampleTimes | None = None
    rates: Mapping[int, float] = field(default_factory=dict)
    moved: Offloaded | None = None
    copies: CopyRates | None = None
    others: int = 0
    seconds: float | None = None
    bad_files: Sequence[str] = ()

    @property
    def trained(self) -> float:
        """Samples a second of the training loop as it ran; 0 if none ran for long enough."""
        if self.report is None or self.report.verdict.bound is Bound.UNKNOWN:
            return 0.0
        return self.report.stats.recent.samples_per_second

    @property
    def needed(self) -> float:
        """Samples a second that training takes when it does not wait; infinite if that is not known."""
        if self.report is None or not self.trained:
            return float("inf")
        return self.trained / max(1e-3, 1 - self.report.stats.recent.stalled)

    @property
    def prepared(self) -> float:
        """Samples a second of the slowest of what else is done to a batch, such as decoding; infinite if not known."""
        if self.report is None or not self.trained:
            return float("inf")
        stats = self.report.stats
        stages = Case(stats, self.setup).stages
        slowest = max((seconds for name, seconds in stages.items() if name != "load"), default=0.0)
        return stats.recent.samples / stats.recent.batches / slowest if slowest else float("inf")

    def in_training(self, workers: int) -> float:
        """Samples a second of training with so many workers; without any, it loads and trains by turns."""
        rate = self.rates.get(workers, 0.0)
        return min(rate if workers else rate / (1 + rate / self.needed), self.needed, self.prepared)

    def gain(self, rate: float) -> float:
        """By what factor training gets faster if it takes so many samples a second.

        It has what was measured in the loop, so that no change is said to win more than not to wait at all would.
        """
        before = max(self.trained, self.in_training(self.setup.workers or 0))
        return rate / before if before else 1.0

    @property
    def changes(self) -> list[str]:
        """Lines of code, each with what it wins, the most first; empty if the input is fast enough."""
        found: list[tuple[float, str, str]] = []
        # What it is worth to load by turns with training, only a loop tells.
        tried = [workers for workers in sorted(self.rates) if workers or self.trained]
        if tried:
            workers = max(tried, key=self.in_training)  # the fewest of those that are fast enough
            if workers != self.setup.workers:
                won, asked = self.gain(self.in_training(workers)), self.setup.asked_by(workers)
                found.append((won, f"DataLoader(..., num_workers={workers})", asked and f".{asked}"))
        if self.moved is not None:
            won = self.gain(min(self.moved.samples_per_second, self.needed))
            found.append((won, "loader = fl.offload(loader)", ""))
        # On a CPU, training takes cores from the loader.
        most = "at most " if not self.setup.has_device else ""
        return [
            f"{line}  # {most}{won:.2f}x{asked}" for won, line, asked in sorted(found, reverse=True) if won >= WORTH_IT
        ]

    @property
    def is_measured(self) -> bool:
        """Whether a training loop ran for long enough, or there was none, and the loader alone gave a rate."""
        return any(self.rates.values()) if self.report is None else self.trained > 0

    @property
    def is_healthy(self) -> bool:
        """Whether there is nothing to change."""
        bound = self.report.verdict.bound if self.report is not None else Bound.COMPUTE
        return self.is_measured and not self.changes and bound is Bound.COMPUTE

    def json(self) -> str:
        """All of it as JSON."""
        report = None if self.report is None else json.loads(self.report.json())
        found = {**asdict(self), "report": report, "changes": self.changes, "is_healthy": self.is_healthy}
        return json.dumps(found, indent=2)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from fastload.doctor.table import rendered  # noqa: PLC0415

        yield from rendered(self)


def examine(target: ExaminedLoader, advance: Callable[[str], None] = lambda _: None) -> Examination:
    """Measure the parts of a target's loader, each for a few seconds; ``advance`` is told what comes next.

    Raises:
        ScriptError: the loader failed.
    """
    device = resolved_device(None)
    inner = torch_loader_in(target.loader)
    report = target.measured.report(show=False) if target.measured is not None else None
    setup = report.setup if report is not None else Setup.of(target.loader, device.type)
    try:
        with as_main(target.main):
            found = dict(_measured(target.loader, inner, setup, device, advance)) if inner is not None else {}
    except Exception as error:
        raise ScriptError(f"the loader of {target.name} failed") from error
    return Examination(target.name, str(device), setup, report, others=target.others, seconds=target.seconds, **found)


def _measured(
    outer: Any, loader: DataLoader[Any], setup: Setup, device: torch.device, advance: Callable[[str], None]
) -> Iterator[tuple[str, Any]]:
    advance("one sample")
    folder = loader.dataset if isinstance(loader.dataset, FolderOfImages) else None
    yield "sample", time_samples(loader)
    rates = {}
    for workers in numbers_of_workers(setup.workers or 0):
        advance(f"{workers} workers")
        rates[workers] = rate_of(with_workers(loader, workers))
    yield "rates", rates
    if setup.images != "files":
        advance("fl.offload")
        yield "moved", offloaded(outer, device.type != "cpu", on_error="raise" if folder is None else "skip")
    advance("copies")
    yield "copies", copy_rates(device)
    if folder is not None:
        yield "bad_files", folder.bad_files
