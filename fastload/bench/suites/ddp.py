"""How close training on several GPUs comes to its speed with data on each of them, when it starts from JPEG files.

One process for each GPU trains ResNet-50 under ``DistributedDataParallel``, on its GPU's part of the cores. The windows
are those of ``jpeg``, of all ranks at once: in every step each rank waits for the gradients of the others, and so for
the slowest input stage.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import distributed, multiprocessing
from torch.multiprocessing.spawn import ProcessContext, spawn

from fastload.bench.harness.plan import Plan
from fastload.bench.harness.process import start_workers_by
from fastload.bench.harness.row import Row
from fastload.bench.harness.suite import Sizes, Suite
from fastload.bench.harness.window import Window
from fastload.bench.subjects import dali
from fastload.bench.subjects.file_windows import FileWindows, JpegSize, write_photographs
from fastload.bench.subjects.training import TrainingStep, cudnn_search, replicated, replicated_for_graphs
from fastload.bench.suites import jpeg
from fastload.environment import cores

__all__ = ["SUITE"]

# Windows and settling are shorter than jpeg's, so that two GPUs are measured in minutes: they are rented together.
SIZES = Sizes(
    replace(jpeg.CASES["resnet50_b256"].gpu, steps=80, warm_up=30, settling=200), jpeg.CASES["resnet50_b256"].cpu
)
SAVING = 10.0  # seconds between looks at what the ranks have measured so far
RANKS = {f"resnet50_b256_x{ranks}": ranks for ranks in (1, 2, 4, 8)}


def measure(plan: Plan[JpegSize]) -> list[Row]:
    """Check what is delivered, start a process for each rank, and return the rows that the first one writes."""
    subjects = [name for name in plan.subjects if name != SUITE.baseline]
    with tempfile.TemporaryDirectory(prefix="fastload-bench-") as folder:
        root = write_photographs(folder, plan.size.files)
        windows = FileWindows.of(plan.size, root, plan.device)
        for name in plan.track(subjects, "checking"):
            windows.check(name)
        start_method = multiprocessing.get_start_method()
        chosen = plan.case, subjects, plan.variants, plan.runs
        arguments = *chosen, plan.device.type, start_method, root, Path(folder)
        ranks: ProcessContext = spawn(_rank, args=arguments, nprocs=RANKS[plan.case], join=False)  # type: ignore[no-untyped-call]
        while not ranks.join(SAVING):
            if rows := _rows_of(Path(folder)):
                plan.save(rows)
        return _rows_of(Path(folder))


def _rank(
    rank: int,
    case: str,
    subjects: Sequence[str],
    variants: Sequence[str],
    runs: int,
    kind: str,
    start_method: str,
    root: Path,
    folder: Path,
) -> None:
    """Measure as one of the ranks; the first writes the rows."""
    start_workers_by(start_method)
    ranks = RANKS[case]
    _keep_to_own_cores(rank, max(ranks, torch.accelerator.device_count()))
    device = torch.device(kind)
    if device.type == "cuda":
        device = torch.device(kind, rank)
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(cores())
    backend = distributed.get_default_backend_for_device(device)
    distributed.init_process_group(backend, f"file://{folder / 'store'}", rank=rank, world_size=ranks)
    try:
        rows: list[Row] = []
        for measured in _measure(Plan(case, SIZES.on(device), subjects, runs, device, variants), root, ranks):
            rows += measured
            if rank == 0:
                _write_rows(folder, rows)
    finally:
        distributed.destroy_process_group()


def _measure(plan: Plan[JpegSize], root: Path, ranks: int) -> Iterator[list[Row]]:
    """Yield the rows of one variant of the step after the other."""
    windows = FileWindows.of(plan.size, root, plan.device)
    for name in plan.subjects:
        windows.settle(name)

    def agreed(window: Window) -> Window:
        """Return the world's window: the slowest rank's speed, the longest wait in each step, all processor time."""
        least, most = distributed.ReduceOp.MIN, distributed.ReduceOp.MAX
        return replace(
            window,
            steps_per_s=_reduced([window.steps_per_s], least, plan.device)[0],
            waits=_reduced(window.waits, most, plan.device),
            gaps=_reduced(window.gaps, most, plan.device),
            cpu_s_per_step=_reduced([window.cpu_s_per_step], distributed.ReduceOp.SUM, plan.device)[0],
        )

    with cudnn_search():
        for variant in plan.variants:
            wrap = replicated_for_graphs if variant == "graph" else replicated
            step = TrainingStep(plan.size.model, plan.device, wrap, from_cpp=variant == "cpp")
            jpeg.compile_step(windows, step)
            yield jpeg.train_by_turns(plan, windows, plan.subjects, step, variant=variant, ranks=ranks, agreed=agreed)


def _keep_to_own_cores(rank: int, places: int) -> None:
    """Leave the other ``places`` the other cores; neighbours have neighbouring ones.

    The host's other GPUs have places too, so that a rank has as many cores however many ranks there are.
    """
    if hasattr(os, "sched_setaffinity") and cores() >= places:
        there = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, there[rank * len(there) // places : (rank + 1) * len(there) // places])


def _reduced(values: Sequence[float], operation: distributed.ReduceOp.RedOpType, device: torch.device) -> list[float]:
    reduced = torch.tensor(values, dtype=torch.float64, device=device)
    distributed.all_reduce(reduced, operation)
    return reduced.tolist()


def _write_rows(folder: Path, rows: list[Row]) -> None:
    (folder / "rows.part").write_text(json.dumps(rows))
    (folder / "rows.part").replace(folder / "rows.json")  # at once, for who reads it meanwhile


def _rows_of(folder: Path) -> list[Row]:
    """What the first rank has written so far."""
    file = folder / "rows.json"
    rows: list[Row] = json.loads(file.read_text()) if file.exists() else []
    return rows


def settings(device: torch.device) -> dict[str, object]:
    return {
        **jpeg.common_settings(device),
        "size": asdict(SIZES.on(device)),
        "ranks": "one process a device, on that device's part of the host's cores, compiled, DistributedDataParallel",
        "statistics": "of DistributedDataParallel: in the first ten steps only",
        "buffers": "each rank's own: not sent before each forward pass",
        "workers": "for each rank: reading_workers, or threads of DALI for all of its cores but one",
        "img_per_s": "of all ranks together, in the time of the slowest",
        "wait": "of the rank that waited longest in each step",
        "peak_gib": "the first rank's",
        "dali": dali.SETTINGS,
    }


SUITE = Suite(
    name="ddp",
    cases=dict.fromkeys(RANKS, SIZES),
    subjects=("limit", "dali", "dali_crop", "fastload"),
    baseline="limit",
    packages=dict.fromkeys(("dali", "dali_crop"), "nvidia-dali-cuda130"),
    runs=2,
    settings=settings,
    measure=measure,
    ranks=RANKS,
    variants=("ordinary", "graph"),
    more_variants=("cpp",),
)
