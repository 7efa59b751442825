"""The training steps that ``step`` compares: fastload, Accelerate and Fabric, and one written by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastload.bench.harness.window import Step
from fastload.bench.subjects.training_state import TrainingState
from fastload.training.step import TrainStep

__all__ = ["MAX_NORM", "PRECISIONS", "REFUSED", "STEPS"]

MAX_NORM = 1.0
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def handwritten(state: TrainingState) -> Step:
    model, optimizer, scheduler = state.model, state.optimizer, state.scheduler
    device, dtype = state.device.type, PRECISIONS[state.precision]
    scaler = torch.amp.GradScaler(device, enabled=state.precision == "fp16")
    # Listed once: walking through the modules takes longer than queueing the clipping.
    parameters = list(model.parameters())

    def step(inputs: Any, targets: Any) -> Tensor:
        with torch.autocast(device, dtype):
            loss = state.loss(model, inputs, targets)
        torch.autograd.backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        return loss.detach()

    return step


def fastload(state: TrainingState) -> Step:
    step = TrainStep(
        state.model,
        state.optimizer,
        state.loss_fn,
        precision=state.precision,
        max_norm=MAX_NORM,
        scheduler=state.scheduler,
    )
    return lambda inputs, targets: step(inputs, targets).loss


def accelerate(state: TrainingState) -> Step:
    from accelerate import Accelerator  # noqa: PLC0415  (a peer that may be missing)
    from accelerate.state import AcceleratorState  # noqa: PLC0415

    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001  (otherwise a process keeps its first precision)
    accelerator = Accelerator(mixed_precision=state.precision, cpu=state.device.type == "cpu")
    model, optimizer, scheduler = accelerator.prepare(state.model, state.optimizer, state.scheduler)

    def step(inputs: Any, targets: Any) -> Tensor:
        loss = state.loss(model, inputs, targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        return loss.detach()

    return step


def fabric(state: TrainingState) -> Step:
    from lightning.fabric import Fabric  # noqa: PLC0415  (a peer that may be missing)

    precision: Any = f"{state.precision.replace('fp16', '16')}-mixed"
    fabric = Fabric(accelerator=state.device.type, devices=1, precision=precision)
    model, optimizer = fabric.setup(state.model, state.optimizer)
    # Fabric's model rounds all floats that it is given, boxes too, which torchvision's detectors refuse.
    forward = model.module if state.loss_fn is None else model

    def step(inputs: Any, targets: Any) -> Tensor:
        with fabric.autocast():
            loss = state.loss(forward, inputs, targets)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=MAX_NORM, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        state.scheduler.step()
        return loss.detach()

    return step


# Fabric refuses to clip gradients where the optimizer unscales them itself, as fused ones do.
REFUSED = {("fabric", "fp16")}

STEPS = {"handwritten": handwritten, "fastload": fastload, "accelerate": accelerate, "fabric": fabric}
