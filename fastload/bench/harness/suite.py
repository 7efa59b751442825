"""What every suite of the benchmark is made of, and the turns in which its subjects are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from rich.progress import Progress

from fastload.bench.harness.result import Row
from fastload.environment import cores

__all__ = ["Plan", "Suite", "turns", "worker_count"]

MOST_WORKERS = 14


@dataclass(frozen=True)
class Plan:
    """One case to measure: which subjects, how often, where, and how far it has come."""

    case: str
    subjects: Sequence[str]
    runs: int
    device: torch.device
    # Drawn between measurements only: a bar that redraws itself takes the interpreter from what is measured.
    progress: Progress = field(default_factory=lambda: Progress(disable=True))

    def track(self, subjects: Sequence[str], doing: str) -> Iterator[str]:
        """Yield the subjects one by one, showing which is being worked on."""
        task = self.progress.add_task("", total=len(subjects))
        for subject in subjects:
            self.progress.update(task, description=f"{self.case}: {doing} {subject}", refresh=True)
            yield subject
            self.progress.advance(task)
        self.progress.update(task, description=f"{self.case}: {doing}", refresh=True)

    def alternate(self, subjects: Sequence[str]) -> Iterator[str]:
        """Yield every subject once a run, the next one first in each run."""
        return self.track(list(chain.from_iterable(turns(subjects, self.runs))), "measuring")


@dataclass(frozen=True)
class Suite:
    """A question that the benchmark answers: its cases, who is compared, and how a case is measured.

    ``measure`` checks every subject's values first and raises ``WrongValuesError`` if one is wrong: a case
    whose check is red has no figures.
    """

    name: str
    cases: Sequence[str]
    subjects: Sequence[str]
    baseline: str  # the subject that ratios are to; measured whatever else is chosen
    packages: Mapping[str, str]  # subject -> the package it comes from, where fastload does not bring it
    runs: int
    settings: Callable[[torch.device], dict[str, object]]
    measure: Callable[[Plan], list[Row]]
    ranks: Mapping[str, int] = field(default_factory=dict)  # case -> how many devices train, where more than one may


def turns(subjects: Sequence[str], runs: int) -> list[list[str]]:
    """Return the order of the subjects in each run, so that no one always follows the same neighbour in time.

    >>> turns(["limit", "plain", "fastload"], 2)
    [['limit', 'plain', 'fastload'], ['plain', 'fastload', 'limit']]
    """
    return [[*subjects[first:], *subjects[:first]] for first in (run % len(subjects) for run in range(runs))]


def worker_count() -> int:
    """How many loader workers to start: all cores but two, which the training and the pinning thread need."""
    return max(1, min(MOST_WORKERS, cores() - 2))
