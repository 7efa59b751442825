"""What a training step costs in fastload, Accelerate and Fabric beside the same step written by hand with care.

The batch is on the device already, so that the step alone is measured: forward, backward, clipping, fused AdamW and
scheduler, in bf16, or in fp16 with a scaler. Every subject trains a model of its own, and begins each window with the
same weights and random numbers: what Mask R-CNN has to do depends on both.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from fastload.bench.harness.check import WrongValuesError
from fastload.bench.harness.result import Row, ratio_to, row
from fastload.bench.harness.suite import Plan, Suite
from fastload.bench.harness.window import synchronize
from fastload.bench.subjects.training import cudnn_search
from fastload.structure.tree import map_movable
from fastload.training.step import TrainStep

__all__ = ["SUITE"]

Batch = tuple[Any, Any]
Step = Callable[[Any, Any], Tensor]

SEED = 0
MAX_NORM = 1.0
LEARNING_RATE = 1e-4
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}  # the variants; the CPU has bf16 alone
CHECKED_STEPS = 3
# Of a loss: what another rounding, and the proposals that Mask R-CNN then draws, may change in that many steps.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Size:
    """How large the batches are, and how many steps a window has."""

    batch: int
    side: int
    steps: int
    warm_up: int

    @classmethod
    def of(cls, case: str, device: torch.device) -> Size:
        batch, side, steps = CASES[case].size
        if device.type == "cuda":
            return cls(batch, side, steps, warm_up=5)
        return cls(batch=2, side=32, steps=1, warm_up=0)


@dataclass(frozen=True)
class Case:
    """A model, at full size or a tiny one, its batch, and its loss; None if the model returns losses itself."""

    size: tuple[int, int, int]
    model: Callable[[bool], nn.Module]
    batch: Callable[[Size, torch.Generator], Batch]
    loss_fn: Callable[[Tensor, Tensor], Tensor] | None = nn.functional.cross_entropy
    # Whether each step's convolutions have the same shapes. Mask R-CNN's have the numbers of its proposals, for each of
    # which cuDNN would search anew.
    fixed_shapes: bool = True


def _vit(tiny: bool) -> nn.Module:
    models = torchvision.models
    model: nn.Module = models.VisionTransformer(32, 16, 2, 2, 32, 64) if tiny else models.vit_b_16()
    return model


def _resnet18(tiny: bool) -> nn.Module:  # noqa: ARG001  (small enough)
    model: nn.Module = torchvision.models.resnet18()
    return model


def _maskrcnn(tiny: bool) -> nn.Module:
    build = torchvision.models.detection.maskrcnn_resnet50_fpn
    sides = {"min_size": 32, "max_size": 32, "rpn_pre_nms_top_n_train": 8} if tiny else {}
    model: nn.Module = build(weights=None, weights_backbone=None, **sides)
    return model


def _classified(size: Size, generator: torch.Generator) -> Batch:
    images = torch.randn(size.batch, 3, size.side, size.side, generator=generator)
    return images, torch.randint(1000, (size.batch,), generator=generator)


def _detected(size: Size, generator: torch.Generator) -> Batch:
    """Images in the shape of COCO's, with eight objects each."""
    height, width = size.side * 3 // 4, size.side
    images = [torch.rand(3, height, width, generator=generator) for _ in range(size.batch)]
    targets = []
    for _ in images:
        corners = torch.rand(8, 2, generator=generator) * torch.tensor([width / 2, height / 2])
        sides = (0.1 + 0.4 * torch.rand(8, 2, generator=generator)) * torch.tensor([width, height])
        masks = torch.randint(2, (8, height, width), dtype=torch.uint8, generator=generator)
        labels = torch.randint(1, 91, (8,), generator=generator)
        targets.append({"boxes": torch.cat([corners, corners + sides], dim=1), "labels": labels, "masks": masks})
    return images, targets


CASES = {
    "vit_b16_b128": Case((128, 224, 20), _vit, _classified),
    "resnet18_b64": Case((64, 224, 50), _resnet18, _classified),
    "maskrcnn_b4": Case((4, 640, 20), _maskrcnn, _detected, loss_fn=None, fixed_shapes=False),
}


@dataclass(frozen=True)
class Training:
    """What a subject trains with: all of it its own."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler
    loss_fn: Callable[[Tensor, Tensor], Tensor] | None
    precision: str
    device: torch.device

    @classmethod
    def of(cls, model: nn.Module, case: Case, precision: str, device: torch.device) -> Training:
        model = copy.deepcopy(model).to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
        return cls(model, optimizer, LambdaLR(optimizer, _warm_up), case.loss_fn, precision, device)

    def begin(self, weights: dict[str, Tensor]) -> None:
        """Go back to ``weights``, and to the random numbers that go with them."""
        self.model.load_state_dict(weights)
        torch.manual_seed(SEED)

    def loss(self, model: Callable[..., Any], inputs: Any, targets: Any) -> Tensor:
        if self.loss_fn is not None:
            return self.loss_fn(model(inputs), targets)
        losses: dict[str, Tensor] = model(inputs, targets)
        return reduce(torch.add, losses.values())


def _warm_up(update: int) -> float:
    return min(1.0, (update + 10) / 100)


def _handwritten(training: Training) -> Step:
    model, optimizer, scheduler = training.model, training.optimizer, training.scheduler
    device, dtype = training.device.type, PRECISIONS[training.precision]
    scaler = torch.amp.GradScaler(device, enabled=training.precision == "fp16")
    parameters = list(model.parameters())  # walking through the modules takes longer than clipping is queued in

    def step(inputs: Any, targets: Any) -> Tensor:
        with torch.autocast(device, dtype):
            loss = training.loss(model, inputs, targets)
        torch.autograd.backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        return loss.detach()

    return step


def _fastload(training: Training) -> Step:
    step = TrainStep(
        training.model,
        training.optimizer,
        training.loss_fn,
        precision=training.precision,
        max_norm=MAX_NORM,
        scheduler=training.scheduler,
    )
    return lambda inputs, targets: step(inputs, targets).loss


def _accelerate(training: Training) -> Step:
    from accelerate import Accelerator  # noqa: PLC0415  (a peer that may be missing)
    from accelerate.state import AcceleratorState  # noqa: PLC0415

    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001  (one precision a process otherwise)
    accelerator = Accelerator(mixed_precision=training.precision, cpu=training.device.type == "cpu")
    model, optimizer, scheduler = accelerator.prepare(training.model, training.optimizer, training.scheduler)

    def step(inputs: Any, targets: Any) -> Tensor:
        loss = training.loss(model, inputs, targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        return loss.detach()

    return step


def _fabric(training: Training) -> Step:
    from lightning.fabric import Fabric  # noqa: PLC0415  (a peer that may be missing)

    precision: Any = f"{training.precision.replace('fp16', '16')}-mixed"
    fabric = Fabric(accelerator=training.device.type, devices=1, precision=precision)
    model, optimizer = fabric.setup(training.model, training.optimizer)
    # Its model rounds all floats that it is given, boxes too, which torchvision's detectors refuse.
    forward = model.module if training.loss_fn is None else model

    def step(inputs: Any, targets: Any) -> Tensor:
        with fabric.autocast():
            loss = training.loss(forward, inputs, targets)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=MAX_NORM, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        training.scheduler.step()
        return loss.detach()

    return step


# Fabric clips no gradients that its optimizer unscales itself, as fused ones do.
REFUSED = {("fabric", "fp16")}

SUBJECTS = {"handwritten": _handwritten, "fastload": _fastload, "accelerate": _accelerate, "fabric": _fabric}


def measure(plan: Plan) -> list[Row]:
    with cudnn_search() if CASES[plan.case].fixed_shapes else nullcontext():
        return [each for precision in _precisions(plan.device) for each in _measure(plan, precision)]


def _precisions(device: torch.device) -> list[str]:
    return list(PRECISIONS) if device.type == "cuda" else ["bf16"]


def _measure(plan: Plan, precision: str) -> list[Row]:
    case, size = CASES[plan.case], Size.of(plan.case, plan.device)
    torch.manual_seed(SEED)
    model = case.model(plan.device.type == "cpu")
    batch = _moved(case.batch(size, torch.Generator().manual_seed(SEED)), plan.device)
    subjects = [name for name in plan.subjects if (name, precision) not in REFUSED]
    trainings = {name: Training.of(model, case, precision, plan.device) for name in subjects}
    steps = {name: SUBJECTS[name](training) for name, training in trainings.items()}
    weights = _moved(model.state_dict(), plan.device)
    losses: dict[str, list[float]] = {}
    for name in plan.track(subjects, f"checking {precision} of"):
        trainings[name].begin(weights)
        losses[name] = torch.stack([steps[name](*batch) for _ in range(CHECKED_STEPS)]).tolist()
        _check(name, losses[name], losses[SUITE.baseline])
    times: dict[str, list[float]] = defaultdict(list)
    for name in plan.alternate(subjects):
        trainings[name].begin(weights)
        times[name].append(_window(steps[name], batch, size, plan.device))
    rows = []
    for name, values in times.items():
        ratios = [own / other for own, other in zip(values, times[SUITE.baseline], strict=True)]
        rows.append(row(plan.case, name, "ms", values, variant=precision, **ratio_to(SUITE.baseline, ratios)))
    return rows


def _check(name: str, losses: list[float], expected: list[float]) -> None:
    off = max(abs(own - other) / abs(other) for own, other in zip(losses, expected, strict=True))
    if not off <= TOLERANCE:
        raise WrongValuesError(
            f"{name} is wrong: its first losses are {losses}, the handwritten loop's {expected}, which is {off:.3g} "
            f"of them; allowed is {TOLERANCE}"
        )


def _window(step: Step, batch: Batch, size: Size, device: torch.device) -> float:
    """Milliseconds a step, the device idle at both ends."""
    for _ in range(size.warm_up):
        step(*batch)
    synchronize(device)
    start = time.perf_counter()
    for _ in range(size.steps):
        step(*batch)
    synchronize(device)
    return 1000 * (time.perf_counter() - start) / size.steps


def _moved(value: Any, device: torch.device) -> Any:
    return map_movable(lambda tensor, _: tensor.to(device), value)


def settings(device: torch.device) -> dict[str, object]:
    return {
        "sizes": {case: asdict(Size.of(case, device)) for case in CASES},
        "variants": ", ".join(_precisions(device)),
        "optimizer": f"AdamW, fused; gradients clipped to a norm of {MAX_NORM}; a scheduler stepped each update",
        "compiled": False,
        "cudnn_search": [name for name, case in CASES.items() if case.fixed_shapes],
        "windows": "each from the same weights and random numbers",
        "missing": "fabric in fp16: it clips no gradients that a fused optimizer unscales",
    }


SUITE = Suite(
    name="step",
    cases=tuple(CASES),
    subjects=tuple(SUBJECTS),
    baseline="handwritten",
    packages={"accelerate": "accelerate", "fabric": "lightning"},
    runs=15,
    settings=settings,
    measure=measure,
)
