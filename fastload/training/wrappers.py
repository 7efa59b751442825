"""What frameworks put around optimizers and schedulers, and how ``TrainStep`` uses what is inside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fastload.structure.loaded_types import loaded_types

__all__ = [
    "is_scheduler",
    "plain_optimizer",
    "refuse_accumulation",
    "scheduled_optimizer",
    "step_scheduler",
    "stepped_through",
]


def plain_optimizer(optimizer: Any) -> Optimizer:
    """The optimizer inside a wrapper of Accelerate, Lightning or Fabric; others as they are."""
    wrapper = _is_accelerated(optimizer) or _is_lightning(optimizer) or _is_fabric(optimizer)
    inner: Optimizer = plain_optimizer(optimizer.optimizer) if wrapper else optimizer
    return inner


def stepped_through(optimizer: Any) -> Any:
    """What to call ``step`` of: Lightning counts ``global_step`` in its wrapper; no other wrapper is needed for it."""
    return optimizer if _is_lightning(optimizer) else plain_optimizer(optimizer)


def refuse_accumulation(optimizers: Iterable[Any]) -> None:
    """Raise if Accelerate accumulates too: it would keep ranks from reducing gradients that a step updates with.

    Raises:
        RuntimeError: the step is inside ``accelerator.accumulate``, at a batch that Accelerate does not update after.
    """
    for optimizer in optimizers:
        if _is_accelerated(optimizer) and not optimizer.gradient_state.sync_gradients:
            raise RuntimeError(
                f"Accelerate and TrainStep both accumulate; got gradient_accumulation_steps="
                f"{optimizer.gradient_state.num_steps}: pass accumulate={optimizer.gradient_state.num_steps} to "
                "TrainStep, and leave out accelerator.accumulate"
            )


def is_scheduler(scheduler: object) -> bool:
    """Whether it can be stepped after each update: PyTorch's without a metric, timm's, and Accelerate's around one."""
    inner = _inner(scheduler)
    return isinstance(inner, (LRScheduler, *_timm())) and not isinstance(inner, ReduceLROnPlateau)


def scheduled_optimizer(scheduler: Any) -> Optimizer:
    """The optimizer, in no wrapper, whose learning rate ``scheduler`` sets."""
    return plain_optimizer(_inner(scheduler).optimizer)


def step_scheduler(scheduler: Any, updates: int) -> None:
    """Step a scheduler after update number ``updates``, counted from 1, as timm's schedulers need to know."""
    if isinstance(scheduler, _timm()):
        scheduler.step_update(updates)
    else:
        scheduler.step()


def _inner(scheduler: Any) -> Any:
    is_wrapper = isinstance(scheduler, loaded_types("accelerate.scheduler", "AcceleratedScheduler"))
    return scheduler.scheduler if is_wrapper else scheduler


def _timm() -> tuple[type[Any], ...]:
    return loaded_types("timm.scheduler.scheduler", "Scheduler")


def _is_accelerated(optimizer: Any) -> bool:
    """Of this type exactly: DeepSpeed's and Megatron's subclasses leave the update to their engines."""
    return type(optimizer) in loaded_types("accelerate.optimizer", "AcceleratedOptimizer")


def _is_lightning(optimizer: Any) -> bool:
    packages = "lightning.pytorch", "pytorch_lightning"
    known = (loaded_types(f"{package}.core.optimizer", "LightningOptimizer") for package in packages)
    return any(isinstance(optimizer, types) for types in known)


def _is_fabric(optimizer: Any) -> bool:
    packages = "lightning.fabric", "lightning_fabric"
    known = (loaded_types(f"{package}.wrappers", "_FabricOptimizer") for package in packages)
    return any(isinstance(optimizer, types) for types in known)
