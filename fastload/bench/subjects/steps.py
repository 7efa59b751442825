"""The training steps that ``step`` compares: fastload, Accelerate and Fabric, and one written by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor, nn

from fastload.bench.harness.window import Step
from fastload.bench.subjects.training_state import TrainingState
from fastload.training.step import TrainStep

__all__ = ["GRAPHS", "MAX_NORM", "PRECISIONS", "REFUSED", "STEPS"]

MAX_NORM = 1.0
WARM_UP = 3  # steps before a capture
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def _queued(state: TrainingState, model: Callable[..., Any]) -> Step:
    """All of a step but the scheduler's; ``model`` is the state's, or the same compiled."""
    optimizer = state.optimizer
    device, dtype = state.device.type, PRECISIONS[state.precision]
    scaler = torch.amp.GradScaler(device, enabled=state.precision == "fp16")
    # Listed once: walking through the modules takes longer than queueing the clipping.
    parameters = list(state.model.parameters())

    def step(inputs: Any, targets: Any) -> Tensor:
        with torch.autocast(device, dtype):
            loss = state.loss(model, inputs, targets)
        torch.autograd.backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def handwritten(state: TrainingState, *, mode: str | None = None) -> Step:
    """The step written with care; with a ``mode``, of the model compiled in it."""
    queued = _queued(state, state.model if mode is None else torch.compile(state.model, mode=mode))

    def step(inputs: Any, targets: Any) -> Tensor:
        loss = queued(inputs, targets)
        state.scheduler.step()
        return loss

    return step


def handwritten_graph(state: TrainingState) -> Step:
    """The whole step as one CUDA graph, over a batch at a fixed address; the rate is a tensor outside of it."""
    for group in state.optimizer.param_groups:
        group |= {"capturable": True, "lr": torch.tensor(group["lr"], device=state.device)}
    queued = _queued(state, state.model)
    calls = count()
    captured: list[tuple[torch.cuda.CUDAGraph, Tensor]] = []

    def replayed(inputs: Any, targets: Any) -> Tensor:
        if not captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = queued(inputs, targets)
            captured.append((graph, result))
        ((graph, result),) = captured
        graph.replay()
        return result.clone()

    def step(inputs: Any, targets: Any) -> Tensor:
        loss = (queued if next(calls) < WARM_UP else replayed)(inputs, targets)
        state.scheduler.step()
        return loss

    return step


def fastload(state: TrainingState, *, graph: bool = False, compiled: bool = False) -> Step:
    step = TrainStep(
        cast(nn.Module, torch.compile(state.model)) if compiled else state.model,
        state.optimizer,
        state.loss_fn,
        precision=state.precision,
        max_norm=MAX_NORM,
        scheduler=state.scheduler,
        graph=graph,
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

# CUDA graphs of a whole step: of models whose shapes are the same each time.
GRAPHS = {"handwritten_graph", "fastload_graph", "reduce_overhead", "fastload_graph_compiled"}

STEPS: dict[str, Callable[[TrainingState], Step]] = {
    "handwritten": handwritten,
    "fastload": fastload,
    "accelerate": accelerate,
    "fabric": fabric,
    "handwritten_graph": handwritten_graph,
    "fastload_graph": partial(fastload, graph=True),
    "reduce_overhead": partial(handwritten, mode="reduce-overhead"),
    "fastload_graph_compiled": partial(fastload, graph=True, compiled=True),
}
