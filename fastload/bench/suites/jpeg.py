"""How close training comes to its speed on data that is on the GPU, when it starts from JPEG files.

Every subject reads the same files and feeds the same compiled training step. Its speed is divided by that of the
``limit``, the step on one batch of them kept on the device, measured just before and just after it. In the case
``loader`` nothing is trained: the batches go to a consumer that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from fastload.bench.harness.plan import Plan
from fastload.bench.harness.row import Row
from fastload.bench.harness.suite import Sizes, Suite, sizes_on
from fastload.bench.harness.turns import Figure, Figures, by_turns
from fastload.bench.harness.window import Window
from fastload.bench.subjects import dali, training
from fastload.bench.subjects.file_windows import SEED, FileWindows, JpegSize, look
from fastload.bench.subjects.stages import STAGES
from fastload.bench.subjects.training import TrainingStep, cudnn_search
from fastload.bench.subjects.workers import READING_WORKERS, decoding_workers

__all__ = ["CASES", "SUITE", "common_settings", "train_by_turns"]

CPU_SIZE = JpegSize("squeezenet1_1", batch=4, rounds=1, steps=1, warm_up=1, settling=1, files=20, side=32)
CASES = {
    "resnet50_b256": Sizes(JpegSize("resnet50", 256, rounds=6), CPU_SIZE),
    "vit_b16_b128": Sizes(JpegSize("vit_b_16", 128, rounds=8), CPU_SIZE),
    "resnet18_b512": Sizes(JpegSize("resnet18", 512, rounds=5), CPU_SIZE),
    "loader": Sizes(JpegSize("none", 256, rounds=6), CPU_SIZE),
}


def measure(plan: Plan[JpegSize]) -> list[Row]:
    subjects = [name for name in plan.subjects if name != SUITE.baseline]
    with FileWindows.open(plan.size, plan.device) as windows:
        for name in plan.track(subjects, "checking"):
            windows.check(name)
            windows.settle(name)
        if plan.case != "loader":
            return train_by_turns(plan, windows, subjects)

        def delivered(name: str) -> Figures:
            return {"loader_img_per_s": Figure(plan.size.batch * windows.window(name, look).steps_per_s)}

        return by_turns(plan, subjects, delivered)


def train_by_turns(
    plan: Plan[Any],
    windows: FileWindows,
    subjects: Sequence[str],
    *,
    ranks: int = 1,
    wrap: Callable[[nn.Module], nn.Module] | None = None,
    agreed: Callable[[Window], Window] = lambda window: window,
) -> list[Row]:
    """Measure the subjects by turns while they train, with the limit around each.

    In one of several processes, ``ranks`` is how many there are, ``wrap`` makes the model one of theirs, and
    ``agreed`` returns the window on which they agree.
    """
    with cudnn_search():
        step = TrainingStep(windows.size.model, plan.device, wrap)
        windows.window(SUITE.baseline, step)  # compiles the model
        windows.outside[SUITE.baseline] = 0.0  # so far the model's own memory, which every subject uses

        def window(name: str) -> Figures:
            return agreed(windows.window(name, step)).img_per_s(ranks * windows.size.batch)

        return by_turns(plan, subjects, window, ratios={"img_per_s": SUITE.baseline}, around=SUITE.baseline)


def common_settings(device: torch.device) -> dict[str, object]:
    """Return the settings that ``ddp`` shares."""
    return {
        "reading_workers": READING_WORKERS,
        **training.describe(device),
        "files": f"fastload sample-data, seed {SEED}, its train/, read before; drawn with replacement, without end",
        "limit": "one batch of the files kept on the device; measured before and after every other window",
        "peak_gib": "of PyTorch's allocator, and what the subject took on the device beside it",
    }


def settings(device: torch.device) -> dict[str, object]:
    return {
        "sizes": sizes_on(device, CASES),
        "decoding_workers": decoding_workers(),
        **common_settings(device),
        "dali": dali.SETTINGS,
    }


SUITE = Suite(
    name="jpeg",
    cases=CASES,
    subjects=("limit", *STAGES),
    baseline="limit",
    packages={
        **dict.fromkeys(("pil_timm", "torchvision_timm"), "timm"),
        **dict.fromkeys(("dali", "dali_crop"), "nvidia-dali-cuda130"),
    },
    runs=3,
    settings=settings,
    measure=measure,
)
