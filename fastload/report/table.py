"""How a report looks: a sentence, what to change, and a table of the stages."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fastload.report.verdict import Bound
from fastload.stats.stats import Period, Timing

if TYPE_CHECKING:
    from fastload.report.report import Report

__all__ = ["as_text", "rendered"]

WIDTH = 80
INDENT = (0, 0, 0, 2)
ON_HOST = {
    "load": "waiting for the loader",
    "pin": "pinning files",
    "decode": "queueing decoding",
    "slot": "waiting for room",
    "prepare": "copying, queueing",
    "next": "training thread in next()",
}
ON_DEVICE = {"decode": "decoding", "copy": "copying", "transform": "transforming"}


Row = tuple[str, str, Timing]


def rendered(report: Report) -> Iterator[RenderableType]:
    """The parts of a report, for rich."""
    yield Text(report.verdict.sentence, style="bold")
    for change in report.verdict.changes:
        yield Padding(Text.assemble(("Change: ", "bold green"), change), INDENT)
    if report.verdict.bound is not Bound.UNKNOWN:
        yield table_of(report)
        yield Text(below(report), style="dim")


def as_text(report: Report) -> str:
    """A report as plain text, 80 columns wide."""
    file = io.StringIO()
    Console(file=file, width=WIDTH, color_system=None).print(report)
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip().splitlines())


def table_of(report: Report) -> Table:
    window = report.stats.recent
    table = Table(box=None, pad_edge=False)
    table.add_column("where")
    table.add_column("what, for each batch")
    for heading in ("ms", "p99", "share"):
        table.add_column(heading, justify="right")
    consumer = "GPU" if report.setup.has_device else "training"
    rows = [(consumer, "step", window.step), (consumer, "  waiting for input", window.stall), *stages(report, window)]
    for where, what, timing in rows:
        table.add_row(where, what, *figures(timing, window))
    return table


def stages(report: Report, window: Period) -> list[Row]:
    host = [("host", text, window.host[name]) for name, text in ON_HOST.items() if name in window.host]
    if not report.setup.has_device:
        return host
    return host + [("GPU", text, window.device[name]) for name, text in ON_DEVICE.items() if name in window.device]


def below(report: Report) -> str:
    window, usage = report.stats.recent, report.stats.workers
    speed = f"{window.samples_per_second:,.0f} samples/s"
    said = [f"{window.batches} batches", speed, f"{window.ready:.1f} ready when one was asked for"]
    if report.setup.has_device and window.copy_gigabytes_per_second:
        said.append(f"copied at {window.copy_gigabytes_per_second:.3g} GB/s")
    if usage is not None and usage.busy is not None:
        said.append(f"workers compute {usage.busy:.0%} of the time")
    if report.stats.startup:
        said.append(f"first batch after {max(report.stats.startup):.2g} s")
    return "; ".join(said)


def figures(timing: Timing, window: Period) -> tuple[str, str, str]:
    return f"{timing.mean * 1e3:.2f}", f"{timing.p99 * 1e3:.2f}", f"{timing.mean / window.step.mean:.0%}"
