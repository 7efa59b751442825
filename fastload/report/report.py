"""``Report``: the verdict on a loader, and the table behind it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING

from fastload.arguments import integer
from fastload.report.diagnosis import NOTICEABLE, diagnose
from fastload.report.plot import plot
from fastload.report.setup import Setup
from fastload.report.timeline import Lane, lanes_of
from fastload.report.trace import write_trace
from fastload.report.verdict import Bound, Cause, Verdict
from fastload.stats.batch_times import BatchTimes
from fastload.stats.stats import Stats

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Where a loader's time went, what bounds training, and what to change; ``print`` shows it.

    ``ranks`` has the stats of all ranks, of which ``stats`` is the slowest's, if they were gathered.
    """

    stats: Stats
    setup: Setup
    verdict: Verdict
    ranks: Sequence[Stats] = ()
    batches: Sequence[BatchTimes] = field(default=(), repr=False)

    @classmethod
    def of(cls, stats: Stats, setup: Setup, ranks: Sequence[Stats] = (), batches: Sequence[BatchTimes] = ()) -> Report:
        """Judge what was measured: of one rank, or the slowest of several. ``batches`` are this rank's own."""
        if ranks:
            stats = max(ranks, key=lambda each: each.recent.stalled)
        verdict = diagnose(stats, setup)
        if is_uneven(ranks):
            verdict = of_uneven_ranks(stats, ranks, verdict)
        return cls(stats, setup, verdict, ranks, batches)

    def __str__(self) -> str:
        from fastload.report.table import as_text  # noqa: PLC0415  (rich is not needed for training)

        return as_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from fastload.report.table import rendered  # noqa: PLC0415

        yield from rendered(self)

    def show(self) -> None:
        """Print it: with colours in a terminal, as plain text elsewhere."""
        from rich.console import Console  # noqa: PLC0415

        Console().print(self)

    def plot(self, path: str | Path, *, steps: int = 6, dark: bool = False) -> None:
        """Draw the last steps of this process: what each thread and the device did when.

        Args:
            path: a file that ends with .png, .svg or .pdf.
            steps: how many, at least 1.
            dark: for a dark page.

        Raises:
            ModuleNotFoundError: matplotlib is not installed, which the extra ``plot`` brings.
            ValueError: an argument is out of its range, or no step was measured.
        """
        plot(self._lanes, self._window(integer("steps", steps, least=1)), self._title, Path(path), dark=dark)

    def trace(self, path: str | Path, profiler: str | Path | None = None) -> None:
        """Write the last batches of this process as a trace for https://ui.perfetto.dev or chrome://tracing.

        With ``profiler``, a file that ``torch.profiler`` exported, the trace has the events of both, on one clock.

        Raises:
            OSError: a file cannot be read or written.
            ValueError: ``profiler`` is no JSON.
        """
        write_trace(self._lanes, Path(path), None if profiler is None else Path(profiler))

    @property
    def _lanes(self) -> list[Lane]:
        return lanes_of(self.batches, has_device=self.setup.has_device)

    def _window(self, steps: int) -> tuple[float, float]:
        """From when to when the last steps lasted, without those whose later batches are not known."""
        arrivals = [batch.device["stall"].begin for batch in self.batches]
        ahead = min(self.setup.depth or 0, max(0, len(arrivals) - 1 - steps))
        if len(arrivals) < len(("begin", "end")):
            raise ValueError(f"there is nothing to plot: {len(arrivals)} batches of the last pass were measured")
        end = len(arrivals) - 1 - ahead
        return arrivals[max(0, end - steps)], arrivals[end]

    @property
    def _title(self) -> str:
        window, verdict = self.stats.recent, self.verdict
        return f"{verdict.bound.value.capitalize()}: {window.stalled:.0%} of the time waiting for input"

    def json(self) -> str:
        """All of it as JSON."""
        return json.dumps(
            {
                "verdict": {**asdict(self.verdict), "sentence": self.verdict.sentence},
                "setup": asdict(self.setup),
                "stats": asdict(self.stats),
                "ranks": [asdict(each) for each in self.ranks],
            },
            indent=2,
        )


def is_uneven(ranks: Sequence[Stats]) -> bool:
    """Whether one rank waits for its input noticeably more than most others do."""
    stalled = [each.recent.stalled for each in ranks]
    return len(ranks) > 1 and max(stalled) >= max(2 * median_low(stalled), median_low(stalled) + NOTICEABLE)


def of_uneven_ranks(slowest: Stats, ranks: Sequence[Stats], verdict: Verdict) -> Verdict:
    others = median_low([each.recent.stalled for each in ranks])
    why = (
        f"rank {slowest.rank} of {len(ranks)} waits for its input {slowest.recent.stalled:.0%} of the time, the others "
        f"{others:.0%}, and all ranks march at the pace of the slowest. {verdict.why[0].upper()}{verdict.why[1:]}"
    )
    change = (
        f"Look at the host of rank {slowest.rank}: its disk, what else runs on its cores, and whether its shard has "
        "larger files."
    )
    return Verdict(Bound.INPUT, Cause.UNEVEN_RANKS, why, verdict.stage, verdict.most, [change, *verdict.changes])
