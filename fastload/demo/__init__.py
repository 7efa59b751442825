"""The demo: one model trained twice on the same photographs, by the plain loop and through fastload."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fastload.demo.loops import LoopResult, train_plainly, train_with_fastload, warm_up
from fastload.demo.settings import Settings, prepare
from fastload.streams import STREAMLESS

__all__ = ["LoopResult", "Settings", "prepare", "run"]

# If more than this part of the time is spent waiting, the input bounds training.
INPUT_BOUND = 0.1

WHOLE = 10  # from here on a rate is shown as a whole number


def run(settings: Settings, console: Console) -> tuple[LoopResult, LoopResult]:
    """Train by the plain loop, then through fastload; show progress, a table, and one sentence on what it shows."""
    console.print(_headline(settings))
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        bars = [progress.add_task(name, total=settings.steps) for name in ("plain loop", "fastload")]
        warm_up(settings)
        plain = train_plainly(settings, lambda: progress.advance(bars[0]))
        fast = train_with_fastload(settings, lambda: progress.advance(bars[1]))
    console.print(_table(settings, plain, fast))
    console.print(_verdict(settings, plain, fast))
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


def _verdict(settings: Settings, plain: LoopResult, fast: LoopResult) -> str:
    """Return one sentence on what bounds training on this machine."""
    if settings.device.type == "cpu":
        return (
            "On a CPU there is no transfer to hide, and workers and model share its cores: "
            "this shows that fastload trains the same model, not that it is faster."
        )
    if fast.waiting > INPUT_BOUND:
        return (
            f"JPEG decoding in the workers bounds training here: the device waits {fast.waiting:.0%} of the time even "
            f"through fastload, {plain.waiting:.0%} in the plain loop. Hiding the copy cannot change that."
        )
    return (
        f"The model bounds training here: the device waits {fast.waiting:.1%} of the time through fastload, "
        f"{plain.waiting:.1%} in the plain loop. No loader could win more than that."
    )
