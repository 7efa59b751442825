"""What a training step costs in fastload, Accelerate and Fabric, next to the same step written by hand with care.

The batch is on the device already, so that only the step is measured: forward, backward, clipping, fused AdamW and
scheduler, in bf16, or in fp16 with a scaler. Every subject trains a model of its own, and starts each window with the
same weights and random numbers, since the work that Mask R-CNN has to do depends on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product, repeat
from typing import Any

import torch
from torch._functorch import config as functorch

from fastload.bench.harness.check import WrongValuesError
from fastload.bench.harness.plan import Plan
from fastload.bench.harness.row import Row
from fastload.bench.harness.suite import Sizes, Suite, sizes_on
from fastload.bench.harness.turns import Figure, Figures, by_turns
from fastload.bench.harness.window import timed_window
from fastload.bench.subjects.step_case import STEP_CASES, StepSize
from fastload.bench.subjects.steps import GRAPHS, MAX_NORM, PRECISIONS, REFUSED, STEPS
from fastload.bench.subjects.training import cudnn_search
from fastload.bench.subjects.training_state import SEED, TrainingState
from fastload.structure.tree import map_movable

__all__ = ["SUITE"]

CHECKED_STEPS = 3
# Of a loss: how far other rounding, and the other proposals that Mask R-CNN then draws, can move it in these steps.
TOLERANCE = 0.05
CPU_SIZE = StepSize(batch=2, side=32, steps=1, warm_up=0)
CASES = {
    "vit_b16_b128": Sizes(StepSize(128, 224, 20, warm_up=5), CPU_SIZE),
    "resnet18_b64": Sizes(StepSize(64, 224, 50, warm_up=5), CPU_SIZE),
    "maskrcnn_b4": Sizes(StepSize(4, 640, 20, warm_up=5), CPU_SIZE),
}


def measure(plan: Plan[StepSize]) -> list[Row]:
    rows: list[Row] = []
    anew = functorch.patch(enable_autograd_cache=False)  # PyTorch 2.11's takes a model compiled in bf16 for one in fp16
    with anew, cudnn_search() if STEP_CASES[plan.case].fixed_shapes else nullcontext():
        for precision in _precisions(plan.device):
            rows += _measure(plan, precision)
            plan.save(rows)
    return rows


def _precisions(device: torch.device) -> list[str]:
    """Return the variants; the CPU is too slow in fp16."""
    return list(PRECISIONS) if device.type == "cuda" else ["bf16"]


def _measure(plan: Plan[StepSize], precision: str) -> list[Row]:
    case, size, device = STEP_CASES[plan.case], plan.size, plan.device
    torch.manual_seed(SEED)
    model = case.model() if device.type == "cuda" else case.tiny_model()
    batch = _moved(case.batch(size, torch.Generator().manual_seed(SEED)), device)
    refused = REFUSED if case.fixed_shapes and device.type == "cuda" else {*REFUSED, *product(GRAPHS, PRECISIONS)}
    subjects = [name for name in plan.subjects if (name, precision) not in refused]
    states = {name: TrainingState.of(model, case.loss_fn, precision, device) for name in subjects}
    steps = {name: STEPS[name](state) for name, state in states.items()}
    weights = _moved(model.state_dict(), device)
    losses: dict[str, list[float]] = {}
    for name in plan.track(subjects, f"checking {precision} of"):
        states[name].begin(weights)
        losses[name] = torch.stack([steps[name](*batch) for _ in range(CHECKED_STEPS)]).tolist()
        _check(name, losses[name], losses[SUITE.baseline])

    def window(name: str) -> Figures:
        states[name].begin(weights)
        batches = (each for each in repeat(batch))
        timed = timed_window(steps[name], batches, warm_up=size.warm_up, steps=size.steps, device=device)
        return {"ms": Figure(1000 / timed.steps_per_s)}

    return by_turns(plan, subjects, window, ratios={"ms": SUITE.baseline}, variant=precision)


def _check(name: str, losses: Sequence[float], expected: Sequence[float]) -> None:
    off = max(abs(own - other) / abs(other) for own, other in zip(losses, expected, strict=True))
    if not off <= TOLERANCE:
        raise WrongValuesError(
            f"{name} is wrong: its first losses are {losses}, the handwritten loop's {expected}: a difference of "
            f"{off:.3g} of the loss; allowed is {TOLERANCE}"
        )


def _moved(value: Any, device: torch.device) -> Any:
    return map_movable(lambda tensor, _: tensor.to(device), value)


def settings(device: torch.device) -> dict[str, object]:
    return {
        "sizes": sizes_on(device, CASES),
        "variants": ", ".join(_precisions(device)),
        "optimizer": f"AdamW, fused; gradients clipped to a norm of {MAX_NORM}; a scheduler stepped each update",
        "compiled": "reduce_overhead and fastload_graph_compiled alone",
        "cudnn_search": [name for name, case in STEP_CASES.items() if case.fixed_shapes],
        "windows": "each from the same weights and random numbers",
        "missing": "fabric in fp16: it clips no gradients that a fused optimizer unscales",
    }


SUITE = Suite(
    name="step",
    cases=CASES,
    subjects=tuple(STEPS),
    baseline="handwritten",
    packages={"accelerate": "accelerate", "fabric": "lightning"},
    runs=15,
    settings=settings,
    measure=measure,
)
