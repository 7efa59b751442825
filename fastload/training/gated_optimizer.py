"""An optimizer whose update can be left out by a flag that only the device knows."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["GatedOptimizer"]


class GatedOptimizer:
    """Stands before an optimizer, and lets an update through unless a flag on the device is 1.

    ``GradScaler.step`` hands optimizers that say they can use it the flag itself, ``found_inf``, instead of reading it;
    a gate says so for all. The flag then keeps an update from the weights in one of three ways:

    1. Fused optimizers take it: their kernels write nothing if it is 1.
    2. Other optimizers of ``torch.optim`` step, and what they wrote to weights and state on the device is put back,
       on the device, if it is 1. What the host can see of a step, counters on the CPU and state made by the first one,
       is put back by ``settle``, when the host knows.
    3. For the rest, and for sparse gradients, the host reads the flag, and so waits for the device.

    ``skipped`` is the flag of the last update, a scalar float32 tensor of 0 or 1, or None if there was none.
    With ``undo=False`` the second and third ways are not gone: only fused optimizers heed ``veto``.
    """

    _step_supports_amp_scaling = True

    def __init__(self, optimizer: Optimizer, *, undo: bool) -> None:
        self.optimizer = optimizer
        self.skipped: Tensor | None = None
        self._undo = undo
        self._is_fused = _takes_flag(optimizer)
        self._can_be_put_back = type(optimizer).__module__.startswith("torch.optim.")
        self._veto: Tensor | None = None
        self._is_unscaled = False
        self._states_before = 0
        self._kept_on_host: list[tuple[Tensor, Tensor]] = []

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @property
    def heeds_veto(self) -> bool:
        """Whether a veto keeps an update from the weights."""
        return self._is_fused or self._undo

    def unscale(self, scaler: torch.amp.GradScaler) -> None:
        """Unscale the gradients; the second call before an update does nothing."""
        if not self._is_unscaled:
            scaler.unscale_(self)  # type: ignore[arg-type]
            self._is_unscaled = True

    def update(self, scaler: torch.amp.GradScaler, veto: Tensor | None) -> None:
        """Step the optimizer unless the scaler finds inf or NaN in its gradients, or ``veto`` is 1."""
        self._veto, self.skipped = veto, None
        self._states_before, self._kept_on_host = len(self.optimizer.state), []
        if not self._is_fused:
            self.unscale(scaler)
        self._is_unscaled = False
        scaler.step(self)  # type: ignore[arg-type]

    def step(self) -> None:
        """Be stepped by the scaler, which has set ``found_inf`` and ``grad_scale`` if it is at work."""
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        flags = [flag for flag in (found_inf, self._veto) if isinstance(flag, Tensor)]
        self.skipped = torch.maximum(*flags) if len(flags) > 1 else next(iter(flags), None)
        if self.skipped is None:
            self.optimizer.step()
        elif self._is_fused:
            self._step_fused(self.skipped, scale)
        elif not self._undo:
            self.optimizer.step()
        elif self._can_be_put_back and not any(grad.is_sparse for _, grad in self._gradients()):
            self._step_and_put_back(self.skipped)
        elif not self.skipped.item():
            self.optimizer.step()

    def settle(self, *, skipped: bool) -> None:
        """Put back what the host can see of the last update, if it was skipped."""
        if skipped:
            for parameter in list(self.optimizer.state)[self._states_before :]:  # in the order in which they are made
                del self.optimizer.state[parameter]
            for value, before in self._kept_on_host:
                value.copy_(before)
        self._kept_on_host = []

    def _step_fused(self, skipped: Tensor, scale: Tensor | None) -> None:
        optimizer: Any = self.optimizer
        optimizer.found_inf, optimizer.grad_scale = skipped, scale
        try:
            optimizer.step()
        finally:
            del optimizer.found_inf, optimizer.grad_scale

    @torch.no_grad()
    def _step_and_put_back(self, skipped: Tensor) -> None:
        tensors = [parameter.detach() for parameter, _ in self._gradients()]
        for parameter, _ in self._gradients():
            tensors += [
                value for value in self.optimizer.state.get(parameter, {}).values() if isinstance(value, Tensor)
            ]
        kept = [(tensor, tensor.clone()) for tensor in map(_local, tensors)]
        self.optimizer.step()
        is_skipped = skipped.bool()
        for tensor, before in kept:
            if tensor.is_cpu and not skipped.is_cpu:
                self._kept_on_host.append((tensor, before))
            else:
                torch.where(is_skipped.to(tensor.device, non_blocking=True), before, tensor, out=tensor)

    def _gradients(self) -> list[tuple[Tensor, Tensor]]:
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        return [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]


def _takes_flag(optimizer: Optimizer) -> bool:
    # Before there were flags, some optimizers took the whole scaler; these are stepped by the third way.
    is_of_old = "grad_scaler" in inspect.signature(optimizer.step).parameters
    return getattr(optimizer, "_step_supports_amp_scaling", False) and not is_of_old


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor that is sharded over ranks; others as they are."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
