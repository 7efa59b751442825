"""``TrainStep``: the body of a mixed-precision training loop, each line where it has to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook

from fastload.precision import autocast, grad_scaler, resolve_precision

__all__ = ["StepOutput", "TrainStep"]


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """What a step hands back; its tensors are detached and on the device, and reading one waits for it.

    >>> StepOutput(loss=torch.tensor(0.5), losses={}, stepped=True, grad_norm=None).loss.item()
    0.5

    ``loss`` is a scalar, not divided by ``accumulate``; ``losses`` holds the terms it was summed from, if it
    came as a dict. ``stepped`` says whether this batch closed an accumulation window (in fp16 the scaler may
    still have skipped the update). ``grad_norm`` is the scalar norm of the gradients before clipping, or None
    inside a window and without ``max_norm``.
    """

    loss: Tensor
    losses: dict[str, Tensor]
    stepped: bool
    grad_norm: Tensor | None


class TrainStep:
    """Forward, loss, backward and update, in fp32, bf16 or fp16, without a wait for the device.

    >>> model = nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> step = TrainStep(model, optimizer, nn.CrossEntropyLoss(), precision="bf16", accumulate=2)
    >>> for _ in range(3):
    ...     out = step(torch.randn(8, 4), torch.randint(0, 2, (8,)))
    ...     print(out.loss.shape, out.stepped)
    torch.Size([]) False
    torch.Size([]) True
    torch.Size([]) False
    >>> step.flush()

    docs/train_step.md shows the same loop written by hand, and says why it is ordered so.

    Args:
        model: on its device already; the step runs where the model's first parameter is.
        optimizer: of the model's parameters. For fp16 make it with ``fused=True`` if it can be: others wait
            for the device, to learn whether the scaler found inf or NaN.
        loss_fn: ``step(inputs, targets)`` trains on ``loss_fn(model(inputs), targets)``; without it
            ``step(*batch)`` trains on ``model(*batch)``. The loss is a scalar tensor, or a dict of them to be
            summed, as torchvision's detection models return.
        precision: ``"fp32"``, ``"bf16"``, ``"fp16"``, or ``"auto"``: bf16 where the accelerator computes it
            natively, fp16 on other accelerators, fp32 on the CPU. fp16 on the CPU warns and trains in fp32.
        accumulate: batches an update, at least 1; their gradients are averaged.
        max_norm: the 2-norm to which the gradients are clipped, above 0; ``math.inf`` only measures it.
        scheduler: stepped after each update, not each epoch. An update that the scaler skipped does not
            count, unless the optimizer is fused: then it is skipped on the device, unseen by the host.
        scaler: in place of ``torch.amp.GradScaler`` with its defaults; needs ``precision="fp16"``.

    Raises:
        ValueError: an argument is out of its range, or does not belong to the others.
        TypeError: an argument is of the wrong type, or, from a step, the loss is no scalar.

    A batch whose forward or loss raises is left out of its window; training can go on with the next.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss_fn: Callable[[Any, Any], Tensor | Mapping[str, Tensor]] | None = None,
        *,
        precision: str = "auto",
        accumulate: int = 1,
        max_norm: float | None = None,
        scheduler: LRScheduler | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        _check_optimizer(optimizer, model)
        _check_loss_fn(loss_fn)
        _check_accumulate(accumulate)
        _check_max_norm(max_norm)
        _check_scheduler(scheduler, optimizer)
        _check_scaler(scaler, precision)
        device = next(model.parameters()).device
        self.model = model
        self.optimizer = optimizer
        self.loss_fn = loss_fn
        self.precision = resolve_precision(precision, device)
        self.accumulate = accumulate
        self.max_norm = max_norm
        self.scheduler = scheduler
        self.scaler = scaler or grad_scaler(self.precision, device)
        self._autocast = autocast(self.precision, device)
        self._accumulated = 0
        if self.scaler.is_enabled():
            _start_fused_momentum(optimizer)

    def __call__(self, *batch: Any) -> StepOutput:
        """Train on one batch: ``step(inputs, targets)``, or ``step(*batch)`` without a ``loss_fn``."""
        with self._autocast:
            loss, losses = _total(self._forward(batch))
        # A division by 1 changes nothing, but still launches kernels, forward and backward.
        share = loss if self.accumulate == 1 else loss / self.accumulate
        torch.autograd.backward(self.scaler.scale(share))
        self._accumulated += 1
        stepped = self._accumulated == self.accumulate
        grad_norm = self._update() if stepped else None
        terms = {name: term.detach() for name, term in losses.items()}
        return StepOutput(loss.detach(), terms, stepped, grad_norm)

    def flush(self) -> None:
        """Update with the batches of an unfinished window, averaged over their number, if there are any.

        For the end of an epoch whose length is no multiple of ``accumulate``; without it these batches count
        towards the next epoch's first update.
        """
        if self._accumulated == 0:
            return
        for parameter in self._parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.accumulate / self._accumulated)
        self._update()

    def _forward(self, batch: tuple[Any, ...]) -> object:
        if self.loss_fn is None:
            return self.model(*batch)
        match batch:
            case inputs, targets:
                return self.loss_fn(self.model(inputs), targets)
        raise TypeError(
            f"with a loss_fn a step takes two arguments, inputs and targets; got {len(batch)}. "
            "Unpack the batch, step(*batch), or leave loss_fn out and let the model return its loss"
        )

    def _update(self) -> Tensor | None:
        try:
            grad_norm = self._clip()
            updated = self._step_optimizer()
            self.scaler.update()
        finally:  # an update that fails, for want of memory say, ends its window too
            self.optimizer.zero_grad(set_to_none=True)
            self._accumulated = 0
        if updated and self.scheduler is not None:
            self.scheduler.step()
        return grad_norm

    def _clip(self) -> Tensor | None:
        if self.max_norm is None:
            return None
        self.scaler.unscale_(self.optimizer)
        return nn.utils.clip_grad_norm_(self._parameters(), self.max_norm)

    def _step_optimizer(self) -> bool:
        """Step the optimizer unless the scaler skips it; return whether it was called."""
        calls: list[Optimizer] = []
        # The scaler does not say. A hook on self.optimizer alone would miss one that only wraps another.
        with register_optimizer_step_post_hook(lambda optimizer, *_: calls.append(optimizer)):
            self.scaler.step(self.optimizer)
        return bool(calls)

    def _parameters(self) -> Iterator[Tensor]:
        return (parameter for group in self.optimizer.param_groups for parameter in group["params"])


def _start_fused_momentum(optimizer: Optimizer) -> None:
    """Let the momentum of a fused SGD start at zero: that is as from its first gradient, if not dampened.

    PyTorch allocates it unfilled, writes nothing if the scaler skips the first update, as fp16's large
    initial scale makes likely, and reads it at the second.
    """
    if not isinstance(optimizer, SGD):
        return
    for group in optimizer.param_groups:
        if group["fused"] and group["momentum"] != 0:
            for parameter in group["params"]:
                optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


def _total(returned: object) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and, if it came as a dict, its terms."""
    if not isinstance(returned, Mapping):
        return _scalar(returned), {}
    if not returned:
        raise TypeError("the loss must be a scalar tensor or a dict of at least one; got an empty dict")
    losses = {name: _scalar(term, f"a dict whose {name!r} is ") for name, term in returned.items()}
    return reduce(torch.add, losses.values()), losses


def _scalar(value: object, where: str = "") -> Tensor:
    if isinstance(value, Tensor) and value.ndim == 0:
        return value
    got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise TypeError(
        f"the loss must be a scalar tensor or a dict of scalar tensors; got {where}{got}. "
        "Reduce it, such as with .mean(); turn a prediction into a loss by a loss_fn; call model.train() if "
        "the model returns losses in training mode alone, as torchvision's detection models do"
    )


def _check_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if held.isdisjoint(map(id, model.parameters())):
        raise ValueError(
            f"optimizer must hold parameters of the model; got {len(held)} parameters, none the model's. "
            "Make it from model.parameters(), after all that replaces them"
        )


def _check_loss_fn(loss_fn: object) -> None:
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"loss_fn must be callable, or None if the model returns its loss; got {loss_fn!r}")


def _check_accumulate(accumulate: object) -> None:
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise ValueError(f"accumulate must be an int of at least 1, the batches an update; got {accumulate!r}")


def _check_max_norm(max_norm: float | None) -> None:
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"max_norm must be above 0, or None for no clipping; got {max_norm!r}")


def _check_scheduler(scheduler: object, optimizer: Optimizer) -> None:
    if scheduler is None:
        return
    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
        raise TypeError(
            "scheduler must be a torch.optim.lr_scheduler.LRScheduler that needs no metric, or None; got a "
            f"{type(scheduler).__name__}. Leave it out, and step it in the loop"
        )
    if scheduler.optimizer is not optimizer:
        raise ValueError(
            "scheduler must be the given optimizer's; got a "
            f"{type(scheduler).__name__} of another. Make it anew with this optimizer"
        )


def _check_scaler(scaler: object, precision: str) -> None:
    if scaler is None:
        return
    if not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, or None; got a {type(scaler).__name__}")
    if precision != "fp16":
        raise ValueError(
            f"scaler needs precision='fp16'; got precision={precision!r}. Leave the scaler out, or ask for fp16"
        )
