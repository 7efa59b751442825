"""``draw_bars``: a result as a picture of bars, with their spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastload.bench.harness.result import Result
from fastload.bench.harness.row import Row
from fastload.bench.harness.table import HEADINGS, figure_of
from fastload.report.plot import DPI, FONT, Theme, load_matplotlib

__all__ = ["draw_bars"]

OURS, OTHERS = "#0072B2", "#999999"
WIDTH, BAR, MARGIN = 8.0, 0.3, 0.9  # inches


@dataclass(frozen=True)
class Panel:
    """The bars of one case: a figure of each subject, and half its interquartile range."""

    title: str
    subjects: Sequence[str]
    values: Sequence[float]
    spreads: Sequence[float]


def draw_bars(result: Result, path: Path, *, dark: bool = False) -> bool:
    """Write a picture of a result to a .png, .svg or .pdf; False, and no file, if it has no figures to compare.

    A panel for each case, with the ratio that the suite's tables show; where there is none, with its first metric.

    Raises:
        ModuleNotFoundError: matplotlib is not installed, which the extra ``plot`` brings.
        ValueError: the suffix of ``path`` is another.
    """
    column = next((key for row in result.rows for key in row if key.startswith("ratio_to_")), "")
    panels = _panels(result, column)
    if not panels:
        return False
    plt = load_matplotlib(path)
    heights = [len(panel.subjects) * BAR for panel in panels]
    figure, rows = plt.subplots(
        len(panels), squeeze=False, height_ratios=heights, layout="constrained",
        figsize=(WIDTH, sum(heights) + MARGIN * len(panels)),
    )  # fmt: skip
    theme = Theme(dark=dark)
    for axes, panel in zip(rows[:, 0], panels, strict=True):
        _draw(axes, panel, theme)
    metric = result.rows[0]["metric"]
    rows[-1, 0].set_xlabel(HEADINGS.get(column or metric, column or metric), fontsize=FONT)
    theme.apply(rows[-1, 0])
    figure.suptitle(f"{result.suite}, {result.meta['device']}", fontsize=FONT + 1, color=theme.ink, x=0.01, ha="left")
    figure.savefig(path, dpi=DPI, facecolor=theme.page)
    plt.close(figure)
    return True


def _panels(result: Result, column: str) -> list[Panel]:
    cases: dict[str, list[Row]] = {}
    metric = next((row["metric"] for row in result.rows if not column or column in row), "")
    for row in result.rows:
        if row["metric"] == metric and (not column or column in row):
            title = f"{row['case']}, {row['variant']}" if "variant" in row else row["case"]
            cases.setdefault(title, []).append(row)
    return [
        Panel(
            title,
            [row["subject"] for row in rows],
            [row[column] if column else row["median"] for row in rows],
            [row.get("ratio_iqr" if column else "iqr", 0.0) / 2 for row in rows],
        )
        for title, rows in cases.items()
    ]


def _draw(axes: Any, panel: Panel, theme: Theme) -> None:
    colours = [OURS if subject.startswith(("fastload", "offload")) else OTHERS for subject in panel.subjects]
    places = range(len(panel.subjects))
    axes.barh(places, panel.values, xerr=panel.spreads, color=colours, ecolor=theme.ink, height=0.7, capsize=2)
    for place, value, spread in zip(places, panel.values, panel.spreads, strict=True):
        axes.annotate(
            figure_of(value, 0), (value + spread, place), xytext=(5, 0), textcoords="offset points", va="center",
            fontsize=FONT - 2, color=theme.ink,
        )  # fmt: skip
    axes.set_yticks(places, panel.subjects)
    axes.set_ylim(len(panel.subjects) - 0.5, -0.5)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_title(panel.title, fontsize=FONT, loc="left", color=theme.ink)
    theme.apply(axes)
