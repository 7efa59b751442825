"""``Plan``: one case to measure, and the order in which its subjects take their turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from rich.progress import Progress

from fastload.bench.harness.row import Row

__all__ = ["Plan", "turns"]

SizeT = TypeVar("SizeT")


@dataclass(frozen=True)
class Plan(Generic[SizeT]):
    """One case to measure: its size, which subjects, how often, on which device, and a progress bar."""

    case: str
    size: SizeT
    subjects: Sequence[str]
    runs: int
    device: torch.device
    variants: Sequence[str] = ()
    # Drawn between measurements only: a bar that redraws itself would hold the interpreter during a measurement.
    progress: Progress = field(default_factory=lambda: Progress(disable=True))
    # Saves rows of a long case before all of it has been measured: a run may be cut off.
    save: Callable[[Sequence[Row]], None] = lambda _: None

    def track(self, subjects: Sequence[str], doing: str) -> Iterator[str]:
        """Yield the subjects one by one, and show which is being worked on."""
        task = self.progress.add_task("", total=len(subjects))
        for subject in subjects:
            self.progress.update(task, description=f"{self.case}: {doing} {subject}", refresh=True)
            yield subject
            self.progress.advance(task)
        self.progress.update(task, description=f"{self.case}: {doing}", refresh=True)


def turns(subjects: Sequence[str], runs: int) -> list[list[str]]:
    """Return the order of the subjects in each run: rotated, so that none always follows the same neighbour.

    >>> turns(["limit", "plain", "fastload"], 2)
    [['limit', 'plain', 'fastload'], ['plain', 'fastload', 'limit']]
    """
    return [[*subjects[first:], *subjects[:first]] for first in (run % max(1, len(subjects)) for run in range(runs))]
