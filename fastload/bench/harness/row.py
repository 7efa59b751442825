"""``row``: one figure of a result file."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

__all__ = ["Row", "first_share", "ratio_to", "row"]

Row = dict[str, Any]


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


def first_share(shares: Sequence[float]) -> dict[str, float]:
    """Return a row's entries for its share of the limit in the first steps, of which there is one a run.

    >>> first_share([0.98, 0.97, 0.99])["first_share"]
    0.98
    """
    return {"first_share": statistics.median(shares), "first_iqr": _quartile_range(shares)}


def _quartile_range(values: Sequence[float]) -> float:
    """Return the distance between the first and the third quartile; 0 for a single value."""
    if len(values) == 1:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in figures.items()}
