"""The demo: one model trained twice on the same photographs, by the plain loop and through fastload."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fastload.demo.loops import LoopResult, train_plainly, train_with_fastload, warm_up
from fastload.demo.settings import Settings, prepare
from fastload.streams import STREAMLESS

__all__ = ["LoopResult", "Settings", "prepare", "run"]

PICTURES = Path("fastload-results")
NO_GPU = (
    "\nOn a CPU there is no transfer to hide, and workers and model share its cores: "
    "this shows that fastload trains the same model, not that it is faster."
)
WHOLE = 10  # from here on a rate is shown as a whole number


def run(settings: Settings, console: Console, pictures: Path = PICTURES) -> tuple[LoopResult, LoopResult]:
    """Train by the plain loop, then through fastload; show progress, a table, and what bounds each.

    The last steps of both are drawn to the folder ``pictures``, if matplotlib is installed.
    """
    console.print(_headline(settings))
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        bars = [progress.add_task(name, total=settings.steps) for name in ("plain loop", "fastload")]
        warm_up(settings)
        plain = train_plainly(settings, lambda: progress.advance(bars[0]))
        fast = train_with_fastload(settings, lambda: progress.advance(bars[1]))
    console.print(_table(settings, plain, fast))
    _tell(settings, {"plain loop": plain, "fastload": fast}, pictures, console)
    return plain, fast


def _headline(settings: Settings) -> str:
    epochs = f"{settings.epochs} epoch{'s' * (settings.epochs > 1)}"
    return (
        f"{settings.model} on {settings.device} in {settings.precision}, {epochs} of "
        f"{len(settings.train)} photographs at {settings.size}x{settings.size}, {len(settings.classes)} classes, "
        f"batches of {settings.batch_size}, worker processes: {settings.workers}; held out: {len(settings.held_out)}"
    )


def _table(settings: Settings, plain: LoopResult, fast: LoopResult) -> Table:
    memory = "peak memory, process" if settings.device.type in STREAMLESS else "peak memory, device"
    table = Table()
    for heading in ("", "images/s", "waiting for input", memory, "loss", "held-out accuracy"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, result in (("plain loop", plain), ("fastload", fast)):
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
