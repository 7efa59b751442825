"""Checks of ``TrainStep``'s arguments. Each error quotes the value received and the values allowed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fastload.arguments import not_a_class, quoted
from fastload.training.cuda_graphs import Graphs
from fastload.training.nonfinite import REACTIONS
from fastload.training.ranks import Ranks
from fastload.training.step_graphs import capturable
from fastload.training.tensors import described
from fastload.training.wrappers import is_scheduler, scheduled_optimizer, stepped_through

__all__ = [
    "check_accumulate",
    "check_clipping",
    "check_flag",
    "check_graph",
    "check_items",
    "check_loss_fn",
    "check_losses",
    "check_model",
    "check_models",
    "check_on_nonfinite",
    "check_optimizers",
    "check_scaler",
    "check_schedulers",
]


def check_models(models: Sequence[object]) -> None:
    if not models:
        raise ValueError("model must be a torch.nn.Module, or a list of at least one; got none")
    for model in models:
        check_model(model, "model must be a torch.nn.Module, or several in a list")


def check_model(model: object, rule: str) -> None:
    not_a_class(rule, model)
    # A wrapper may hand on what it is asked for, and be no Module itself.
    if not (hasattr(model, "parameters") and hasattr(model, "modules")):
        raise TypeError(
            f"{rule}; got {quoted(model)}. Pass the module itself; let a function be the forward() of a module"
        )


def check_optimizers(optimizers: Sequence[Optimizer], models: Sequence[nn.Module]) -> None:
    if not optimizers:
        raise ValueError("optimizer must be an optimizer or a list of at least one; got none")
    _check_each_is_once("optimizer", optimizers)
    known = {id(parameter) for model in models for parameter in model.parameters()}
    for optimizer in optimizers:
        _check_optimizer(optimizer)
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if held.isdisjoint(known):
            raise ValueError(
                f"optimizer must hold parameters of the model; got {len(held)} parameters, none the model's. "
                "Make it from model.parameters(), after the last call that replaces them"
            )


def _check_each_is_once(name: str, given: Sequence[object]) -> None:
    if len({id(each) for each in given}) < len(given):
        names = ", ".join(type(each).__name__ for each in given)
        raise ValueError(
            f"{name} must name each object once, as each is stepped once an update; got one several times in "
            f"[{names}]. Leave out the others"
        )


def _check_optimizer(optimizer: Any) -> None:
    # A wrapper may hand on what it is asked for, and be no Optimizer itself.
    is_one = not isinstance(optimizer, type) and hasattr(optimizer, "param_groups") and hasattr(optimizer, "step")
    if not is_one:
        raise TypeError(
            "optimizer must be a torch.optim.Optimizer, made from model.parameters(), or a list of them; got "
            f"{optimizer!r}"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise TypeError(
            f"optimizer must have a step() that needs no closure; got {type(optimizer).__name__}, which computes the "
            "loss several times an update. Train with it in a loop of your own, or pass another, such as SGD or AdamW"
        )


def check_loss_fn(loss_fn: object, models: Sequence[nn.Module]) -> None:
    if loss_fn is None and len(models) > 1:
        raise TypeError("several models need a loss_fn, called as loss_fn(*models, *batch); got None")
    rule = "loss_fn must be callable, or None if the model returns its loss"
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"{rule}; got {loss_fn!r}")
    if not (isinstance(loss_fn, type) and issubclass(loss_fn, Mapping)):  # whose instance is a loss
        not_a_class(rule, loss_fn)


def check_losses(losses: object) -> None:
    names = [losses] if isinstance(losses, str) else losses
    are_names = isinstance(names, (list, tuple)) and names and all(isinstance(name, str) for name in names)
    if losses is not None and not are_names:
        raise TypeError(f"losses must be the names of the terms to be summed, at least one, or None; got {losses!r}")


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False; got {value!r}")


def check_graph(
    device: torch.device, optimizers: Sequence[Optimizer], given: Sequence[object], ranks: Ranks, graphs: Graphs
) -> None:
    """Refuse what a captured step would do wrongly, or cannot do."""
    if device.type != "cuda":
        raise ValueError(f"graph=True needs a model on a CUDA device; got one on {device}. Leave it out there")
    if ranks.sharded:
        raise ValueError("graph=True takes no sharded model: FSDP2 gathers weights as the host goes. Leave it out")
    if graphs.has_graphed_module:
        raise ValueError("graph=True captures the whole step; got a model of torch.cuda.make_graphed_callables")
    for optimizer, wrapped in zip(optimizers, given, strict=True):
        name = type(optimizer).__name__
        if stepped_through(wrapped) is not optimizer:
            raise ValueError(
                f"graph=True takes PyTorch's optimizer itself; got {name} in a {type(wrapped).__name__}. Pass the "
                "optimizer that it wraps"
            )
        if not capturable(optimizer):
            raise ValueError(
                f"graph=True needs an optimizer whose update can be captured; got {name} without. Pass fused=True to "
                "SGD, capturable=True to others, before their first step"
            )


def check_items(items: object) -> None:
    """Check what the host knows of them; on the device a sum that is not above 0 sets a flag."""
    if isinstance(items, Tensor):
        is_number = items.ndim == 0 and not items.is_complex()
    else:
        is_number = items is None or (isinstance(items, (int, float)) and not isinstance(items, bool))
    if not is_number:
        raise TypeError(f"items must be a number, a scalar tensor, or None; got {described(items)}")
    if isinstance(items, (int, float)) and not 0 <= items < math.inf:
        raise ValueError(f"items must be a number of at least 0; got {items!r}")


def check_accumulate(accumulate: object) -> None:
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise ValueError(
            f"accumulate must be an int of at least 1, the number of batches an update; got {accumulate!r}"
        )


def check_clipping(max_norm: float | None, clip_value: float | None) -> None:
    for name, limit in {"max_norm": max_norm, "clip_value": clip_value}.items():
        if limit is not None and (not isinstance(limit, Real) or isinstance(limit, bool)):
            raise TypeError(f"{name} must be a number above 0, or None for no clipping; got {limit!r}")
        if limit is not None and not limit > 0:
            raise ValueError(f"{name} must be above 0, or None for no clipping; got {limit!r}")
    if max_norm is not None and clip_value is not None:
        raise ValueError(f"either max_norm or clip_value can be given; got {max_norm!r} and {clip_value!r}")


def check_on_nonfinite(on_nonfinite: object) -> None:
    if on_nonfinite not in REACTIONS:
        raise ValueError(f"on_nonfinite must be one of {', '.join(map(repr, REACTIONS))}; got {on_nonfinite!r}")


def check_schedulers(schedulers: Sequence[object], optimizers: Sequence[Optimizer]) -> None:
    _check_each_is_once("scheduler", schedulers)
    for scheduler in schedulers:
        if not is_scheduler(scheduler):
            raise TypeError(
                "scheduler must be one of torch.optim.lr_scheduler or timm.scheduler that needs no metric, or None; "
                f"got a {type(scheduler).__name__}. Leave it out, and step it in your loop"
            )
        if not any(scheduled_optimizer(scheduler) is optimizer for optimizer in optimizers):
            raise ValueError(
                "scheduler must be the given optimizer's; got a "
                f"{type(scheduler).__name__} of another. Make it with this optimizer"
            )


def check_scaler(scaler: object, precision: str) -> None:
    if scaler is None:
        return
    if not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, or None; got a {type(scaler).__name__}")
    if precision != "fp16":
        raise ValueError(
            f"scaler needs precision='fp16'; got precision={precision!r}. Leave the scaler out, or train in fp16"
        )
