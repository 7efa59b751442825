"""How an examination looks in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fastload.doctor.examination import Examination

__all__ = ["rendered"]

BAR = 24  # characters
NAMED = 3  # bad files
INDENT = (0, 0, 0, 2)


def rendered(found: Examination) -> Iterator[RenderableType]:
    """The parts of an examination, for rich."""
    if found.report is not None:
        yield found.report
        if found.seconds is not None:
            yield Text(f"(ended after {found.seconds:g} s, before all steps: --seconds watches longer)", style="dim")
        if found.others:
            yield Text(f"(the loader with most batches; the script used {found.others} more)", style="dim")
    else:
        yield Text("No training loop ran, so nothing is known of what training takes.", style="bold")
    if found.bad_files:
        yield Text(_left_out(found.bad_files))
    for title, part in (("one sample, in a worker", _sample(found)), ("the loader alone", _rates(found))):
        if part is not None:
            yield Text(f"\n{title}", style="bold")
            yield Padding(part, INDENT)
    if found.copies is not None:
        yield Text(
            f"\ncopies to {found.device}: {found.copies.pinned:.3g} GB/s from pinned memory, "
            f"{found.copies.pageable:.3g} from pageable"
        )
    yield from _moved(found)
    yield from _changes(found)


def _left_out(files: Sequence[str]) -> str:
    more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
    return f"Left out, since they cannot be decoded: {', '.join(files[:NAMED])}{more}."


def _sample(found: Examination) -> Table | None:
    sample = found.sample
    if sample is None:
        return None
    parts = {"read": sample.read, "decode": sample.decode, "transform": sample.transform, "collate": sample.collate}
    table = _table()
    for name, seconds in parts.items():
        if seconds is not None:
            table.add_row(name, f"{seconds * 1e3:.2f} ms", TextBar(seconds / sample.whole))
    table.add_row("in all", f"{sample.whole * 1e3:.2f} ms", f"{1 / sample.whole:,.0f} samples/s on one core")
    return table


def _rates(found: Examination) -> Table | None:
    rates = {f"{workers or 'no'} worker{'s' * (workers != 1)}": rate for workers, rate in found.rates.items()}
    if found.moved is not None and found.moved.samples_per_second:
        rates["fl.offload"] = found.moved.samples_per_second
    if not rates:
        return None
    table, most = _table(), max([*rates.values(), 1e-9])
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f} samples/s", TextBar(rate / most))
    if found.needed < float("inf"):
        table.add_row("training takes", f"{found.needed:,.0f} samples/s", "when it does not wait")
    return table


def _moved(found: Examination) -> Iterator[RenderableType]:
    moved = found.moved
    if moved is None:
        return
    if moved.refused:
        end = "" if "\n" in moved.refused else "."  # none behind a list
        yield Text(f"\nfl.offload moves nothing: {moved.refused}{end}")
        return
    yield Text("\nfl.offload(loader) would move this", style="bold")
    yield Padding(Text(moved.plan), INDENT)
    if found.device == "cpu":
        yield Text("There is no GPU here, so what it wins was not measured.", style="dim")


def _changes(found: Examination) -> Iterator[RenderableType]:
    if found.changes:
        yield Text("\nchange this", style="bold green")
        for line in found.changes:
            yield Padding(Text(line), INDENT)
    elif found.is_healthy:
        yield Text("\nNothing to change in the input.", style="bold green")
        if found.report is None:
            yield Text("Whether its samples a second are enough, your training tells.")
    elif found.report is not None and not found.is_measured:
        yield Text("\nTraining was not judged, so it is not known whether anything is to change.")
    elif not found.is_measured:
        yield Text("\nNothing could be measured: no training loop ran, and it is no DataLoader of several batches.")


def _table() -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    return table


class TextBar:
    """A bar of a chart, for rich; of "#" where the terminal's encoding has no blocks."""

    def __init__(self, part: float) -> None:
        self.length = round(BAR * min(1.0, part))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(("#" if options.ascii_only else "█") * self.length)
