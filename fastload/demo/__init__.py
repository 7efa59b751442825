"""The demo: one model trained on the same photographs by the plain loop, through ``PrefetchLoader`` and ``offload``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fastload.demo.loops import LOOPS, LoopResult, warm_up
from fastload.demo.settings import Settings, prepare
from fastload.streams import STREAMLESS

__all__ = ["LoopResult", "Settings", "prepare", "run"]

PICTURES = Path("fastload-results")
NO_GPU = (
    "\nOn a CPU there is no transfer to hide and no GPU to decode on; workers and model share its cores: "
    "this shows that fastload trains as well, not that it is faster."
)
LOSSES = "Losses differ: the device rounds otherwise, and offload draws crops of its own."
WHOLE = 10  # from here on a rate is shown as a whole number


def run(settings: Settings, console: Console, pictures: Path = PICTURES) -> dict[str, LoopResult]:
    """Train by each loop; show progress, a table, and what bounds each.

    The last steps of each are drawn to the folder ``pictures``, if matplotlib is installed.
    """
    console.print(_headline(settings))
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        bars = {name: progress.add_task(name, total=settings.steps) for name in LOOPS}
        warm_up(settings)
        results = {name: train(settings, partial(progress.advance, bars[name])) for name, train in LOOPS.items()}
    console.print(_table(settings, results))
    _tell(settings, results, pictures, console)
    return results


def _headline(settings: Settings) -> str:
    epochs = f"{settings.epochs} epoch{'s' * (settings.epochs > 1)}"
    return (
        f"{settings.model} on {settings.device} in {settings.precision}, {epochs} of "
        f"{len(settings.train)} photographs at {settings.size}x{settings.size}, {len(settings.classes)} classes, "
        f"batches of {settings.batch_size}, worker processes: {settings.workers}; held out: {len(settings.held_out)}"
    )


def _table(settings: Settings, results: dict[str, LoopResult]) -> Table:
    memory = "peak memory, process" if settings.device.type in STREAMLESS else "peak memory, device"
    table = Table(caption=LOSSES)
    table.add_column(no_wrap=True)
    for heading in ("images/s", "waiting", memory, "loss", "held-out accuracy"):
        table.add_column(heading, justify="right")
    for name, result in results.items():
        table.add_row(
            name,
            _rate(result.images_per_second),
            f"{result.waiting:.1%}",
            "unknown" if result.peak_bytes is None else f"{result.peak_bytes / 2**30:.2f} GiB",
            f"{result.loss:.3f}",
            f"{result.accuracy:.1%}",
        )
    return table


def _rate(number: float) -> str:
    """Show a slow model's rate too: two digits of it where a whole number would say 0."""
    return f"{number:,.0f}" if number >= WHOLE else f"{number:.2g}"


def _tell(settings: Settings, results: dict[str, LoopResult], pictures: Path, console: Console) -> None:
    """Say of each loop what bounds it, and draw its last steps."""
    for name, result in results.items():
        console.print(f"\n[bold]{name}[/bold]: {result.report.verdict.sentence}")
        picture = pictures / f"{name.replace(' ', '-')}.png"
        try:
            pictures.mkdir(parents=True, exist_ok=True)
            result.report.plot(picture)
            console.print(f"Its last steps: {picture}")
        except (ModuleNotFoundError, ValueError) as reason:
            console.print(f"No picture of its last steps: {reason}")
    if settings.device.type == "cpu":
        console.print(NO_GPU)
