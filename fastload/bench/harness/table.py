"""``Table``: a result laid out for the screen, README.md and docs/."""

from __future__ import annotations

from dataclasses import dataclass

from fastload.bench.harness.result import Result
from fastload.bench.harness.row import Row

__all__ = ["HEADINGS", "Table", "figure_of", "layout"]

# Entries beside a row's metric that get a column of their own, if any row has them.
BESIDE = (
    "ratio_to_per_tensor",
    "ratio_to_handwritten",
    "ratio_to_floor",
    "ratio_to_limit",
    "ratio_to_plain",
    "first_share",
    "gap_p99_ms",
    "cpu_ms_per_img",
    "peak_gib",
    "host_us",
)
SPREADS = {"first_share": "first_iqr"}
DECIMALS = {1: 3, 2: 1}  # by the digits before the point
SMALL = 0.1  # below it three decimals are too few
HEADINGS = {
    "img_per_s": "img/s",
    "loader_img_per_s": "img/s, loader alone",
    "us": "µs",
    "ms": "ms a step",
    "wall_us": "µs until there",
    "ratio_to_per_tensor": "times per_tensor's",
    "ratio_to_handwritten": "times the handwritten loop's",
    "ratio_to_floor": "times the floor",
    "ratio_to_limit": "share of the limit",
    "ratio_to_plain": "times the plain loop's",
    "first_share": "share in the first steps",
    "gap_p99_ms": "wait for a batch, p99, ms",
    "cpu_ms_per_img": "CPU ms an image",
    "peak_gib": "peak GiB",
    "host_us": "host µs",
    "final_loss": "final loss",
    "eval_img_per_s": "eval img/s",
    "eval_img_per_s_autocast": "eval img/s, autocast",
    "eval_loss": "eval loss",
    "eval_loss_autocast": "eval loss, autocast",
    "eval_accuracy": "eval accuracy",
    "eval_accuracy_autocast": "eval accuracy, autocast",
}


@dataclass(frozen=True)
class Table:
    """Headings, and a cell for each in every line; the first ``names`` columns say what was measured."""

    headings: list[str]
    lines: list[list[str]]
    names: int


def layout(result: Result) -> Table:
    """Lay out a line for each subject in each case, and a column for each metric: its median ± half the IQR.

    Where a row has ``mean`` and ``std``, over several seeds, the cell shows these.
    """
    names = ["case", *(["variant"] if any("variant" in row for row in result.rows) else []), "subject"]
    by_subject: dict[tuple[str, ...], dict[str, str]] = {}
    for row in result.rows:
        by_subject.setdefault(tuple(row.get(name, "") for name in names), {}).update(_cells(row))
    columns = list(dict.fromkeys(column for cells in by_subject.values() for column in cells))
    return Table(
        headings=[*names, *(HEADINGS.get(column, column) for column in columns)],
        lines=[[*name, *(cells.get(column, "") for column in columns)] for name, cells in by_subject.items()],
        names=len(names),
    )


def _cells(row: Row) -> dict[str, str]:
    cells = {
        row["metric"]: figure_of(*((row["mean"], 2 * row["std"]) if "std" in row else (row["median"], row["iqr"])))
    }
    for key in BESIDE:
        if key in row:
            spread = "ratio_iqr" if key.startswith("ratio_to_") else SPREADS.get(key, "")
            cells[key] = figure_of(row[key], row.get(spread, 0))
    return cells


def figure_of(median: float, iqr: float) -> str:
    """Write a median ± half the interquartile range, with as many digits as mean something.

    >>> [figure_of(*values) for values in ((18551.4, 12.0), (61.42, 0.5), (0.99512, 0), (0.012346, 0))]
    ['18,551 ± 6', '61.4 ± 0.2', '0.995', '0.01235']
    """
    if abs(median) < SMALL and not iqr:
        return f"{median:.4g}"
    decimals = DECIMALS.get(len(str(int(abs(median)))), 0)
    spread = f" ± {iqr / 2:,.{decimals}f}" if iqr else ""
    return f"{median:,.{decimals}f}{spread}"
