"""``Result``: a result file, with everything that one suite measured on one device.

``benchmarks/results/SUITE--DEVICE.json`` holds ``{"suite": …, "meta": {…}, "rows": […]}``. Tables are drawn
from it alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastload.bench.harness.row import Row

__all__ = ["META_KEYS", "ROW_KEYS", "Result"]

META_KEYS = frozenset({
    "timestamp_utc", "git_commit", "git_dirty", "device", "driver", "cpu_count", "python", "torch",
    "torchvision", "fastload", "peers", "missing", "settings", "wall_s",
})  # fmt: skip
ROW_KEYS = frozenset({"case", "subject", "metric", "median", "iqr", "runs"})

# Rows of two runs may share a file if these are equal; otherwise they cannot be compared.
SAME_RUN_KEYS = ("git_commit", "git_dirty", "device", "driver", "torch", "torchvision", "peers", "settings")


@dataclass
class Result:
    """All rows of one suite on one device."""

    suite: str
    meta: dict[str, Any]
    rows: list[Row]

    @classmethod
    def read(cls, path: Path) -> Result:
        """Read a result file. Raise ``ValueError`` if keys are missing; it names them."""
        content = json.loads(path.read_text())
        for what, keys, wanted in (
            ("the file", content, {"suite", "meta", "rows"}),
            ("its meta", content.get("meta", {}), META_KEYS),
            *((f"row {number}", row, ROW_KEYS) for number, row in enumerate(content.get("rows", []))),
        ):
            if missing := sorted(wanted - set(keys)):
                raise ValueError(f"{path} is no result file: {what} lacks {', '.join(missing)}")
        return cls(content["suite"], content["meta"], content["rows"])

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"suite": self.suite, "meta": self.meta, "rows": self.rows}, indent=1) + "\n")

    def same_run(self, other: Result) -> bool:
        """Whether both were measured on the same code, device and versions, with the same settings."""
        return self.suite == other.suite and all(self.meta[key] == other.meta[key] for key in SAME_RUN_KEYS)

    def merged_into(self, earlier: Result) -> Result:
        """Return the rows of ``earlier`` and of this; where both have a row, this one's."""
        again = {_identity(row) for row in self.rows}
        kept = [row for row in earlier.rows if _identity(row) not in again]
        wall_s = {**earlier.meta["wall_s"], **self.meta["wall_s"]}
        return Result(self.suite, {**self.meta, "wall_s": wall_s}, kept + self.rows)

    def sort(self, cases: Sequence[str], subjects: Sequence[str]) -> None:
        """Sort the rows as the suite lists its cases and subjects."""
        self.rows.sort(
            key=lambda row: (cases.index(row["case"]), row.get("variant", ""), subjects.index(row["subject"]))
        )


def _identity(row: Row) -> tuple[object, ...]:
    return row["case"], row.get("variant"), row["subject"], row["metric"]
