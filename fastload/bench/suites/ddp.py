"""How near training on several GPUs comes to its speed with data on each of them, when it starts from JPEG files.

One process a GPU trains ResNet-50 under ``DistributedDataParallel``. The windows are those of ``jpeg``, of all ranks at
the same time: each waits in every step for the gradients of the others, and so for the slowest input stage.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from fastload.bench.harness.result import Row
from fastload.bench.harness.suite import Plan, Suite
from fastload.bench.harness.window import Window
from fastload.bench.suites import jpeg
from fastload.bench.suites.jpeg import Bench, Size, photographs, training_rows

__all__ = ["SUITE"]

SUBJECTS = ("limit", "fastload")
RANKS = {f"resnet50_b256_x{ranks}": ranks for ranks in (1, 2, 4, 8)}


def measure(plan: Plan) -> list[Row]:
    """Check what is delivered, start a process a rank, and return what the first has measured of all."""
    size = _size(plan.device)
    subjects = [name for name in plan.subjects if name != "limit"]
    with tempfile.TemporaryDirectory(prefix="fastload-bench-") as folder:
        root = photographs(folder, size)
        bench = Bench.of(size, root, plan.device)
        for name in subjects:
            bench.check(name)
        told = plan.case, subjects, plan.runs, plan.device.type, root, Path(folder)
        spawn(_rank, args=told, nprocs=RANKS[plan.case])  # type: ignore[no-untyped-call]
        rows: list[Row] = json.loads(_rows(Path(folder)).read_text())
        return rows


def _rank(rank: int, case: str, subjects: list[str], runs: int, device_type: str, root: Path, folder: Path) -> None:
    """Measure as one of the ranks; the first writes the rows."""
    device = torch.device(device_type)
    if device.type == "cuda":
        device = torch.device(device_type, rank)
        torch.cuda.set_device(device)
    backend = distributed.get_default_backend_for_device(device)
    ranks = RANKS[case]
    distributed.init_process_group(backend, f"file://{folder / 'store'}", rank=rank, world_size=ranks)
    try:
        rows = _measured(Plan(case, subjects, runs, device), root, ranks)
        if rank == 0:
            _rows(folder).write_text(json.dumps(rows))
    finally:
        distributed.destroy_process_group()


def _measured(plan: Plan, root: Path, ranks: int) -> list[Row]:
    bench = Bench.of(_size(plan.device), root, plan.device)
    subjects = list(plan.subjects)
    for name in subjects:
        bench.settle(name)

    def slowest(window: Window) -> Window:
        speed = torch.tensor(window.steps_per_s, dtype=torch.float64, device=plan.device)
        distributed.all_reduce(speed, distributed.ReduceOp.MIN)
        return replace(window, steps_per_s=speed.item())

    return training_rows(plan, bench, subjects, ranks=ranks, wrap=_replicated, agreed=slowest)


def _replicated(model: nn.Module) -> nn.Module:
    torch.manual_seed(distributed.get_rank())  # from here on each rank draws samples of its own
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def _rows(folder: Path) -> Path:
    return folder / "rows.json"


def _size(device: torch.device) -> Size:
    return Size.of("resnet50_b256", device)


def settings(device: torch.device) -> dict[str, object]:
    jpegs = jpeg.SUITE.settings(device)
    return {
        **{key: value for key, value in jpegs.items() if key not in ("sizes", "dali", "decoding_workers")},
        "size": asdict(_size(device)),
        "ranks": "one process a device, DistributedDataParallel, compiled; reading_workers for each",
        "img_per_s": "of all ranks together, in the time of the slowest",
    }


SUITE = Suite(
    name="ddp",
    cases=tuple(RANKS),
    subjects=SUBJECTS,
    baseline="limit",
    packages={},
    runs=3,
    settings=settings,
    measure=measure,
    ranks=RANKS,
)
