"""``ProgressBar``: what the doctor is doing, on stderr."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

__all__ = ["ProgressBar"]


class ProgressBar:
    """Progress on stderr: the steps of a script, then what is measured."""

    def __init__(self, steps: int) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._steps = self._progress.add_task("watching training", total=steps)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self) -> None:
        self._progress.advance(self._steps)

    def measuring(self, part: str) -> None:
        self._progress.update(self._steps, description=f"measuring {part}", total=None, completed=0)
