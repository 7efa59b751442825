"""``write_trace``: the lanes as a trace for Perfetto or chrome://tracing, alone or with a profiler's."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastload.report.timeline import Lane

__all__ = ["write_trace"]

NUMBER = "fastload"  # of the process under which viewers show the lanes


def write_trace(lanes: Sequence[Lane], path: Path, profiler: Path | None = None) -> None:
    """Write the lanes in Chrome's trace format; with those of a trace that ``torch.profiler`` exported, if given.

    Both are on one clock, so that a step of training lies under the work for its batch.

    Raises:
        OSError: ``profiler`` cannot be read, or ``path`` not be written.
        ValueError: ``profiler`` is no JSON.
    """
    trace: dict[str, Any] = {"traceEvents": [], "displayTimeUnit": "ms"}
    if profiler is not None:
        trace = json.loads(profiler.read_text())
    # The host's clock counts from an arbitrary moment; a profiler's trace from one that it states, in ns since 1970.
    start = time.time() - time.perf_counter() - trace.get("baseTimeNanoseconds", 0) / 1e9
    trace["traceEvents"] += [event for row, lane in enumerate(lanes) for event in _events(lane, row, start)]
    trace["traceEvents"].append(_name("process_name", 0, f"fastload, process {os.getpid()}"))
    path.write_text(json.dumps(trace))


def _events(lane: Lane, row: int, start: float) -> list[dict[str, Any]]:
    bars = [
        {
            "ph": "X",
            "cat": "fastload",
            "name": bar.what,
            "pid": NUMBER,
            "tid": row,
            "ts": (bar.begin + start) * 1e6,
            "dur": (bar.end - bar.begin) * 1e6,
            "args": {"batch": bar.batch},
        }
        for bar in lane.bars
    ]
    return [_name("thread_name", row, lane.name), *bars]


def _name(kind: str, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": NUMBER, "tid": row, "args": {"name": name}}
