"""The limit: how fast training goes on data kept on the device, measured just before and just after each subject."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

from fastload.bench.harness.result import Row, ratio_to, row
from fastload.bench.harness.suite import Plan
from fastload.bench.harness.window import Window

__all__ = ["next_to_limit"]


def next_to_limit(plan: Plan, subjects: Sequence[str], batch: int, window: Callable[[str], Window]) -> list[Row]:
    """Measure the subjects by turns, and the limit around each; ``window`` times a window of the one that it is given.

    A ratio is taken within a run, to the mean of the two limits next to it.
    """
    windows: dict[str, list[Window]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    windows["limit"].append(window("limit"))
    for name in plan.alternate(subjects):
        measured = window(name)
        windows["limit"].append(window("limit"))
        before, after = windows["limit"][-2:]
        windows[name].append(measured)
        ratios[name].append(2 * measured.steps_per_s / (before.steps_per_s + after.steps_per_s))
    ratios["limit"] = [1.0]
    return [_row(plan.case, name, batch, windows[name], ratios[name]) for name in ("limit", *subjects)]


def _row(case: str, name: str, batch: int, windows: Sequence[Window], ratios: Sequence[float]) -> Row:
    peaks = [window.peak_gib for window in windows if window.peak_gib is not None]
    return row(
        case,
        name,
        "img_per_s",
        [batch * window.steps_per_s for window in windows],
        peak_gib=statistics.median(peaks) if peaks else None,
        **ratio_to("limit", ratios),
    )
