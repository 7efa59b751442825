"""``by_turns``: the loop that measures the subjects of a case, and the rows made of what it measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastload.bench.harness.plan import Plan, turns
from fastload.bench.harness.row import Row, ratio_to, row

__all__ = ["Figure", "Figures", "Turn", "by_turns", "rows_of"]


@dataclass(frozen=True)
class Figure:
    """One measured value, and values measured with it; None for those that this device does not report."""

    value: float
    beside: Mapping[str, float | None] = field(default_factory=dict)


Figures = Mapping[str, Figure]  # by metric


@dataclass(frozen=True)
class Turn:
    """One subject measured in one run."""

    run: int
    subject: str
    figures: Figures


def by_turns(
    plan: Plan[Any],
    subjects: Sequence[str],
    measure: Callable[[str], Figures],
    *,
    ratios: Mapping[str, str] | None = None,
    around: str | None = None,
    variant: str | None = None,
    summary: Callable[[Sequence[float]], Mapping[str, float]] = lambda _: {},
) -> list[Row]:
    """Measure every subject once a run, in rotating order, and return the ``rows_of`` these turns.

    Args:
        plan: says how many runs to make.
        subjects: the subjects to measure.
        measure: measures one subject once; it is given the subject's name.
        ratios: as for ``rows_of``.
        around: a subject that is measured before and after each of the others as well. Ratios to it are to the mean
            of these two.
        variant: the rows' variant.
        summary: as for ``rows_of``.

    """
    log = [Turn(run, subject, measure(subject)) for run, subject in _order(plan, subjects, around)]
    return rows_of(plan.case, log, ratios=ratios, around=around, variant=variant, summary=summary)


def rows_of(
    case: str,
    log: Sequence[Turn],
    *,
    ratios: Mapping[str, str] | None = None,
    around: str | None = None,
    variant: str | None = None,
    summary: Callable[[Sequence[float]], Mapping[str, float]] = lambda _: {},
) -> list[Row]:
    """Return a row for each subject and metric.

    A row has the median of its metric over the runs, the medians of what was measured beside it, and the median of
    its ratios. A ratio is to the same metric of another subject in the same run.

    Args:
        case: the rows' case.
        log: the turns, in the order in which they were taken.
        ratios: metric -> the subject that its ratios are to. Other metrics have no ratio.
        around: the subject whose turns lie around each of the others.
        variant: the rows' variant.
        summary: further entries of a row, computed from the values of all runs.

    """
    rows = []
    for subject in dict.fromkeys(turn.subject for turn in log):
        own = [turn.figures for turn in log if turn.subject == subject]
        for metric in own[0]:
            values = [figures[metric].value for figures in own]
            extra = {**_beside([figures[metric] for figures in own]), **summary(values)}
            if ratios and metric in ratios:
                extra |= ratio_to(ratios[metric], _ratios(log, subject, metric, ratios[metric], around))
            rows.append(row(case, subject, metric, values, variant=variant, **extra))
    return rows


def _order(plan: Plan[Any], subjects: Sequence[str], around: str | None) -> Iterator[tuple[int, str]]:
    order = [(run, subject) for run, names in enumerate(turns(subjects, plan.runs)) for subject in names]
    if around is not None:
        order = [(0, around), *(turn for run, subject in order for turn in ((run, subject), (run, around)))]
    return zip((run for run, _ in order), plan.track([subject for _, subject in order], "measuring"), strict=True)


def _beside(figures: Sequence[Figure]) -> dict[str, float | None]:
    """Return the median over the runs of each value measured beside a metric; None where it was never known."""
    known = {key: [value for each in figures if (value := each.beside[key]) is not None] for key in figures[0].beside}
    return {key: statistics.median(values) if values else None for key, values in known.items()}


def _ratios(log: Sequence[Turn], subject: str, metric: str, baseline: str, around: str | None) -> list[float]:
    if subject == baseline:
        return [1.0]
    ratios = []
    for place, turn in enumerate(log):
        if turn.subject == subject:
            same_run = (other for other in log if (other.run, other.subject) == (turn.run, baseline))
            compared = (log[place - 1], log[place + 1]) if around == baseline else same_run
            ratios.append(
                turn.figures[metric].value / statistics.fmean(each.figures[metric].value for each in compared)
            )
    return ratios
