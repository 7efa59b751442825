"""A result file: what one suite measured on one device, and with what.

``benchmarks/results/SUITE--DEVICE.json`` holds ``{"suite": …, "meta": {…}, "rows": […]}``. Tables are drawn
from it alone.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import torchvision

import fastload
from fastload.environment import cores

__all__ = ["META_KEYS", "ROW_KEYS", "Result", "Row", "describe", "device_slug", "ratio_to", "row"]

Row = dict[str, Any]

META_KEYS = frozenset({
    "timestamp_utc", "git_commit", "git_dirty", "device", "driver", "cpu_count", "python", "torch",
    "torchvision", "fastload", "peers", "missing", "settings", "wall_s",
})  # fmt: skip
ROW_KEYS = frozenset({"case", "subject", "metric", "median", "iqr", "runs"})

# Two runs that agree in these may share a file; anything else that changed would make its rows incomparable.
SAME_RUN_KEYS = ("git_commit", "git_dirty", "device", "driver", "torch", "torchvision", "peers", "settings")


@dataclass
class Result:
    """All rows of one suite on one device."""

    suite: str
    meta: dict[str, Any]
    rows: list[Row]

    @classmethod
    def read(cls, path: Path) -> Result:
        """Read a result file; raise ``ValueError`` naming the keys that it lacks."""
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
        """Return the rows of ``earlier``, those that were measured again replaced."""
        again = {_identity(row) for row in self.rows}
        kept = [row for row in earlier.rows if _identity(row) not in again]
        wall_s = {**earlier.meta["wall_s"], **self.meta["wall_s"]}
        return Result(self.suite, {**self.meta, "wall_s": wall_s}, kept + self.rows)

    def sort(self, cases: Sequence[str], subjects: Sequence[str]) -> None:
        """Put the rows in the suite's own order."""
        self.rows.sort(
            key=lambda row: (cases.index(row["case"]), row.get("variant", ""), subjects.index(row["subject"]))
        )


def row(case: str, subject: str, metric: str, values: Sequence[float], **extra: float | str | None) -> Row:
    """One figure of the file: median and interquartile range of ``values``, one a run.

    >>> row("resnet18_b512", "limit", "img_per_s", [10.0, 12.0, 11.0], peak_gib=None)["median"]
    11.0

    An ``extra`` that is None has not been measured and is left out.
    """
    figures = {"median": statistics.median(values), "iqr": _quartile_range(values), "runs": len(values)}
    measured = {key: value for key, value in extra.items() if value is not None}
    return {"case": case, "subject": subject, "metric": metric, **_rounded({**figures, **measured})}


def ratio_to(baseline: str, ratios: Sequence[float]) -> dict[str, float]:
    """Return what a row has of its ratios to the floor or the limit, one a run.

    >>> ratio_to("limit", [0.98, 0.97, 0.99])["ratio_to_limit"]
    0.98
    """
    return {f"ratio_to_{baseline}": statistics.median(ratios), "ratio_iqr": _quartile_range(ratios)}


def _quartile_range(values: Sequence[float]) -> float:
    """Return the distance between the first and the third quartile; 0 for a single value."""
    if len(values) == 1:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first


def describe(
    device: torch.device, packages: Mapping[str, str], missing: Sequence[str], settings: object
) -> dict[str, Any]:
    """Return the file's ``meta``: when, on what and with which versions the rows were measured."""
    commit, dirty = _commit()
    return {
        "timestamp_utc": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "git_commit": commit,
        "git_dirty": dirty,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "driver": _driver() if device.type == "cuda" else "",
        "cpu_count": cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "fastload": fastload.__version__,
        "peers": dict(packages),
        "missing": list(missing),
        "settings": json.loads(json.dumps(settings)),  # as it is read back, to be compared
        "wall_s": {},
    }


def device_slug(name: str) -> str:
    """Return a device's name as file names have it.

    >>> device_slug("NVIDIA H200")
    'nvidia-h200'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def _identity(row: Row) -> tuple[object, ...]:
    return row["case"], row.get("variant"), row["subject"], row["metric"]


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in figures.items()}


def _commit() -> tuple[str, bool]:
    """Return the commit that the package's sources are of, and whether they differ from it.

    A machine that has the sources without their repository is told by FASTLOAD_COMMIT, "-dirty" appended if
    they differ.
    """
    if told := os.environ.get("FASTLOAD_COMMIT"):
        return told.removesuffix("-dirty"), told.endswith("-dirty")
    try:
        # An installed copy may lie in someone else's repository, whose commit says nothing about fastload.
        _git("ls-files", "--error-unmatch", "__init__.py")
        return _git("rev-parse", "HEAD"), bool(_git("status", "--porcelain", "."))
    except (OSError, subprocess.CalledProcessError):
        return "unknown", False


def _git(*arguments: str) -> str:
    return _output("git", "-C", str(Path(fastload.__file__).parent), *arguments)


def _driver() -> str:
    try:
        return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
