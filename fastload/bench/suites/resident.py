"""How close training comes to its speed on data that is on the GPU, when decoded images are in host memory.

Every subject gets the same loader and feeds the same compiled training step. Its speed is divided by that of the
``limit``, the step on one batch kept on the device, measured just before and just after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastload.bench.harness.plan import Plan
from fastload.bench.harness.row import Row
from fastload.bench.harness.suite import Sizes, Suite, sizes_on
from fastload.bench.harness.turns import Figures, by_turns
from fastload.bench.harness.window import timed_window
from fastload.bench.subjects import training
from fastload.bench.subjects.host_images import HostImages
from fastload.bench.subjects.loaders import DELIVER
from fastload.bench.subjects.training import TrainingStep, cudnn_search
from fastload.bench.subjects.workers import worker_count

__all__ = ["SUITE"]


@dataclass(frozen=True)
class ResidentSize:
    """The model, and how long it trains: ``steps`` are several times what all queues hold together."""

    model: str
    batch: int
    steps: int
    limit_steps: int = 50
    warm_up: int = 15
    images: int = 4096
    side: int = 224


CPU_SIZE = ResidentSize("squeezenet1_1", batch=4, steps=1, limit_steps=1, warm_up=1, images=12, side=32)
CASES = {
    "resnet18_b512": Sizes(ResidentSize("resnet18", 512, steps=150), CPU_SIZE),
    "resnet50_b256": Sizes(ResidentSize("resnet50", 256, steps=150), CPU_SIZE),
    "vit_b16_b128": Sizes(ResidentSize("vit_b_16", 128, steps=100), CPU_SIZE),
}


def measure(plan: Plan[ResidentSize]) -> list[Row]:
    size = plan.size
    images = HostImages.random(size.images, size.side, size.batch, plan.device)
    subjects = [name for name in plan.subjects if name != SUITE.baseline]
    for name in plan.track(subjects, "checking"):
        images.check(name)
    with cudnn_search():
        step = TrainingStep(size.model, plan.device)

        def window(name: str) -> Figures:
            steps = size.limit_steps if name == SUITE.baseline else size.steps
            timed = timed_window(step, images.batches(name), warm_up=size.warm_up, steps=steps, device=plan.device)
            return timed.img_per_s(size.batch)

        window(SUITE.baseline)  # compiles the model
        return by_turns(plan, subjects, window, ratios={"img_per_s": SUITE.baseline}, around=SUITE.baseline)


def settings(device: torch.device) -> dict[str, object]:
    return {
        "sizes": sizes_on(device, CASES),
        "workers": worker_count(),
        **training.describe(device),
        "limit": "one normalised batch kept on the device; measured before and after every other window",
    }


SUITE = Suite(
    name="resident",
    cases=CASES,
    subjects=("limit", *DELIVER),
    baseline="limit",
    packages={"accelerate": "accelerate", "fabric": "lightning", "timm": "timm"},
    runs=5,
    settings=settings,
    measure=measure,
)
