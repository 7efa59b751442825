"""``row``: one figure of a result file."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

__all__ = ["Row", "first_steps", "ratio_to", "row"]

Row = dict[str, Any]

FIRST = ("wait_p50_ms", "wait_p99_ms", "gap_p99_ms")  # entries of a row that its first steps have, too


def row(case: str, subject: str, metric: str, values: Sequence[float], **extra: float | str | None) -> Row:
    """Return a row: the median and interquartile range of ``values``, of which there is one a run.

    >>> row("resnet18_b512", "limit", "img_per_s", [10.0, 12.0, 11.0], peak_gib=None)["median"]
    11.0

    An ``extra`` entry that is None was not measured and is left out.
    """
    figures = {"median": statistics.median(values), "iqr": _quartile_range(values), "runs": len(values)}
    measured = {key: value for key, value in extra.items() if value is not None}
    return {"case": case, "subject": subject, "metric": metric, **_rounded({**figures, **measured})}


def ratio_to(baseline: str, ratios: Sequence[float]) -> dict[str, float]:
    """Return a row's entries for its ratios to ``baseline``, of which there is one a run.

    >>> ratio_to("limit", [0.98, 0.97, 0.99])["ratio_to_limit"]
    0.98
    """
    return {f"ratio_to_{baseline}": statistics.median(ratios), "ratio_iqr": _quartile_range(ratios)}


def first_steps(runs: Sequence[Row]) -> dict[str, float]:
    """Return a row's entries for its first steps, given a row of each run: the share of the limit, waits and gaps.

    >>> first_steps([{"ratio_to_limit": 0.98, "gap_p99_ms": 0.2}, {"ratio_to_limit": 0.96, "gap_p99_ms": 0.6}])
    {'first_share': 0.97, 'first_iqr': 0.01, 'first_gap_p99_ms': 0.4}
    """
    shares = [run["ratio_to_limit"] for run in runs]
    beside = {f"first_{name}": [run[name] for run in runs if name in run] for name in FIRST}
    medians = {name: statistics.median(values) for name, values in beside.items() if values}
    return _rounded({"first_share": statistics.median(shares), "first_iqr": _quartile_range(shares), **medians})


def _quartile_range(values: Sequence[float]) -> float:
    """Return the distance between the first and the third quartile; 0 for a single value."""
    if len(values) == 1:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in figures.items()}
