"""How close training comes to its speed on data that is on the GPU, when it starts from JPEG files.

Every subject reads the same files and feeds the same compiled training step. Its speed is divided by that of the
``limit``, the step on one batch of them kept on the device, measured just before and just after it. First steps are
measured in processes that have just begun. In the case ``loader`` nothing is trained: the batches go to a consumer that
does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fastload.bench.harness.plan import Plan, turns
from fastload.bench.harness.process import in_new_process
from fastload.bench.harness.row import Row, first_steps
from fastload.bench.harness.suite import Sizes, Suite, sizes_on
from fastload.bench.harness.turns import Figure, Figures, by_turns
from fastload.bench.harness.window import Window
from fastload.bench.subjects import dali, spdl, training
from fastload.bench.subjects.file_windows import SEED, FileWindows, JpegSize, look
from fastload.bench.subjects.stages import CPU_STAGES, STAGES
from fastload.bench.subjects.training import VARIANTS, TrainingStep, compiling, cudnn_search
from fastload.bench.subjects.workers import READING_WORKERS, decoding_workers

__all__ = ["CASES", "MODELS", "SUITE", "common_settings", "compile_step", "train_by_turns"]

CPU_SIZE = JpegSize("squeezenet1_1", batch=4, rounds=1, steps=1, warm_up=1, settling=1, first=2, files=20, side=32)
CASES = {
    "resnet50_b256": Sizes(JpegSize("resnet50", 256, rounds=6), CPU_SIZE),
    "vit_b16_b128": Sizes(JpegSize("vit_b_16", 128, rounds=8), CPU_SIZE),
    "resnet18_b512": Sizes(JpegSize("resnet18", 512, rounds=5), CPU_SIZE),
    "loader": Sizes(JpegSize("none", 256, rounds=6), CPU_SIZE),
}
MODELS = {sizes.gpu.model: sizes for case, sizes in CASES.items() if case != "loader"}


def measure(plan: Plan[JpegSize]) -> list[Row]:
    subjects = [name for name in plan.subjects if name != SUITE.baseline]
    with FileWindows.open(plan.size, plan.device) as windows:
        if plan.case != "loader":
            return _train(plan, windows, subjects)
        _check_and_settle(plan, windows, subjects)

        def delivered(name: str) -> Figures:
            return {"loader_img_per_s": Figure(plan.size.batch * windows.window(name, look).steps_per_s)}

        return by_turns(plan, subjects, delivered)


def _train(plan: Plan[JpegSize], windows: FileWindows, subjects: Sequence[str]) -> list[Row]:
    """Measure the subjects' first steps, check what they deliver, and measure later steps by turns."""
    on_device = [name for name in subjects if name not in CPU_STAGES]
    firsts = {variant: _first_steps(plan, windows, on_device, variant) for variant in plan.variants}

    @cache
    def step_of(*, from_cpp: bool) -> TrainingStep:
        step = TrainingStep(windows.size.model, plan.device, from_cpp=from_cpp)
        compile_step(windows, step)
        return step

    with cudnn_search():
        _check_and_settle(plan, windows, subjects)
        rows: list[Row] = []
        for variant in plan.variants:
            measured = subjects if variant == "ordinary" else on_device
            later = train_by_turns(plan, windows, measured, step_of(from_cpp=variant == "cpp"), variant=variant)
            rows += [row | firsts[variant].get(row["subject"], {}) for row in later]
            plan.save(rows)
        return rows


def _check_and_settle(plan: Plan[JpegSize], windows: FileWindows, subjects: Sequence[str]) -> None:
    for name in plan.track(subjects, "checking"):
        windows.check(name)
        windows.settle(name)


def _first_steps(
    plan: Plan[JpegSize], windows: FileWindows, subjects: Sequence[str], variant: str
) -> dict[str, dict[str, float]]:
    """Return what a subject's row says of its first steps: medians over the runs, each in a process of its own."""
    orders = turns(subjects, plan.runs) if subjects else []
    runs = [
        in_new_process(first_steps_of, plan.size, windows.files.root, order, plan.device, variant)
        for order, _ in zip(orders, plan.track(["first steps"] * len(orders), "measuring"), strict=True)
    ]
    return {name: first_steps([run[name] for run in runs]) for name in subjects}


def first_steps_of(
    size: JpegSize, root: Path, subjects: Sequence[str], device: torch.device, variant: str
) -> dict[str, Row]:
    """Train on each subject from its first batch on, in this process, which must be new; return a row of each.

    The files are those in ``root``. As graphs, the first steps are those after the last graph was captured.
    """
    windows = FileWindows.of(size, root, device)
    is_graph = variant == "graph"
    with cudnn_search():
        training = TrainingStep(size.model, device, from_cpp=variant == "cpp")
        compile_step(windows, training)

        def window(name: str) -> Figures:
            step = training.as_graphs() if is_graph else training
            timed = windows.window if name == SUITE.baseline else windows.first
            return timed(name, step, static=is_graph).img_per_s(size.batch)

        plan = Plan("first steps", size, subjects, runs=1, device=device)
        rows = by_turns(plan, subjects, window, ratios={"img_per_s": SUITE.baseline}, around=SUITE.baseline)
    return {row["subject"]: row for row in rows}


def train_by_turns(
    plan: Plan[Any],
    windows: FileWindows,
    subjects: Sequence[str],
    step: TrainingStep,
    *,
    variant: str,
    ranks: int = 1,
    agreed: Callable[[Window], Window] = lambda window: window,
) -> list[Row]:
    """Measure the subjects by turns while they train, with the limit around each.

    The ``variant`` is that of ``step``, one of ``VARIANTS``. In one of several processes, ``ranks`` is
    how many there are, and ``agreed`` returns the window on which they agree.
    """
    is_graph = variant == "graph"

    def window(name: str) -> Figures:
        timed = windows.window(name, step.as_graphs() if is_graph else step, static=is_graph)
        if is_graph:  # the allocator does not count what graphs use
            timed = replace(timed, peak_gib=None)
        return agreed(timed).img_per_s(ranks * windows.size.batch)

    return by_turns(
        plan, subjects, window, ratios={"img_per_s": SUITE.baseline}, around=SUITE.baseline, variant=variant
    )


def compile_step(windows: FileWindows, step: TrainingStep) -> None:
    """Run a window of the limit, in which the model is compiled."""
    with compiling(from_cpp=step.from_cpp):
        windows.window(SUITE.baseline, step)
    windows.outside[SUITE.baseline] = 0.0  # so far the model's own memory, which every subject uses


def common_settings(device: torch.device) -> dict[str, object]:
    """Return the settings that ``ddp`` shares."""
    return {
        "reading_workers": READING_WORKERS,
        **training.describe(device),
        "variants": VARIANTS,
        "files": f"fastload sample-data, seed {SEED}, its train/, read before; each epoch in random order, without end",
        "limit": "one batch of the files kept on the device; measured before and after every other window",
        "peak_gib": "of PyTorch's allocator, and what the subject took on the device beside it",
    }


def settings(device: torch.device) -> dict[str, object]:
    return {
        "sizes": sizes_on(device, CASES),
        "decoding_workers": decoding_workers(),
        **common_settings(device),
        "dali": dali.SETTINGS,
        "spdl": spdl.SETTINGS,
    }


SUITE = Suite(
    name="jpeg",
    cases=CASES,
    subjects=("limit", *STAGES),
    baseline="limit",
    packages={
        **dict.fromkeys(("pil_timm", "torchvision_timm"), "timm"),
        **dict.fromkeys(("dali", "dali_crop", "dali_dynamic", "dali_capture"), "nvidia-dali-cuda130"),
        "spdl": "spdl-io",
    },
    runs=3,
    settings=settings,
    measure=measure,
    variants=("ordinary", "graph"),
    more_variants=("cpp",),
)
