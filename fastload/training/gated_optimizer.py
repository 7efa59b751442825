"""``GatedOptimizer``: an optimizer whose update is skipped by a flag on the device, which the host need not read."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fastload.training.ranks import local_part

__all__ = ["GatedOptimizer"]


class GatedOptimizer:
    """Wraps an optimizer, and skips its update if a flag on the device is 1.

    >>> weight = torch.zeros(1, requires_grad=True)
    >>> gated = GatedOptimizer(torch.optim.SGD([weight], lr=0.1), undo=True)
    >>> weight.grad = torch.ones(1)
    >>> gated.update(torch.amp.GradScaler("cpu", enabled=False), veto=torch.tensor(1.0))
    >>> weight.tolist(), gated.skipped.tolist()
    ([0.0], 1.0)

    Two flags can skip an update: ``found_inf`` of the ``GradScaler``, for gradients that overflowed, and the caller's
    ``veto``, for a loss or gradient that is not finite. ``GradScaler.step`` reads ``found_inf`` on the host, unless the
    optimizer declares ``_step_supports_amp_scaling``: then it gets the flag itself. This class declares it for all
    optimizers, and applies the flags in one of three ways:

    1. Fused optimizers take the flag: their kernels write nothing if it is 1.
    2. Other optimizers of ``torch.optim`` step. Then the device restores weights and state if the flag is 1. What lies
       on the host, step counters and state made by the first step, is restored by ``resolve``, once the host knows.
    3. For optimizers of other packages and for sparse gradients the host reads the flag, and so waits for the device.

    ``through`` is a wrapper of the optimizer whose ``step`` is called instead. ``undo=False`` leaves out the second and
    third way: then only fused optimizers obey the flags. ``skipped`` is the flag of the last update, a float32
    scalar of 0 or 1, or None if there was none.
    """

    _step_supports_amp_scaling = True

    def __init__(self, optimizer: Optimizer, *, undo: bool, through: Any = None) -> None:
        self.optimizer = optimizer
        self._through = optimizer if through is None else through
        self.skipped: Tensor | None = None
        self._undo = undo
        self._is_fused = _takes_flag(optimizer)
        self._is_restorable = type(optimizer).__module__.startswith("torch.optim.")
        self._veto: Tensor | None = None
        self._is_unscaled = False
        self._states_before = 0
        self._host_copies: list[tuple[Tensor, Tensor]] = []

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @property
    def obeys_veto(self) -> bool:
        """Whether a veto keeps an update from the weights."""
        return self._is_fused or self._undo

    def unscale(self, scaler: torch.amp.GradScaler) -> None:
        """Unscale the gradients; a second call before the update does nothing."""
        if not self._is_unscaled:
            scaler.unscale_(self)  # type: ignore[arg-type]
            self._is_unscaled = True

    def update(self, scaler: torch.amp.GradScaler, veto: Tensor | None) -> None:
        """Step the optimizer unless the scaler finds inf or NaN in its gradients, or ``veto`` is 1."""
        self._veto, self.skipped = veto, None
        self._states_before, self._host_copies = len(self.optimizer.state), []
        if not self._is_fused:
            self.unscale(scaler)
        self._is_unscaled = False
        scaler.step(self)  # type: ignore[arg-type]

    def forget_failure(self) -> None:
        """Drop what an update that raised has left here, of the scaler's too; a next one would take it for its own."""
        self._is_unscaled, self._host_copies = False, []
        for left in ("found_inf", "grad_scale"):
            vars(self).pop(left, None)

    def step(self) -> None:
        """Called by the scaler, which sets ``found_inf`` and ``grad_scale`` first if it is enabled."""
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        flags = [flag for flag in (found_inf, self._veto) if isinstance(flag, Tensor)]
        self.skipped = torch.maximum(*flags) if len(flags) > 1 else next(iter(flags), None)
        if self.skipped is None:
            self._through.step()
        elif self._is_fused:
            self._step_fused(self.skipped, scale)
        elif not self._undo:
            self._through.step()
        elif self._is_restorable and not any(grad.is_sparse for _, grad in self._gradients()):
            self._step_and_restore(self.skipped)
        elif not self.skipped.item():
            self._through.step()

    def resolve(self, *, skipped: bool) -> None:
        """Restore the host's part of the last update if it was skipped; for when the host knows that.

        An optimizer that does not obey the veto keeps its state: its weights took the update, too.
        """
        if skipped and self.obeys_veto:
            for parameter in list(self.optimizer.state)[self._states_before :]:  # in the order in which they are made
                del self.optimizer.state[parameter]
            for value, before in self._host_copies:
                value.copy_(before)
        self._host_copies = []

    def _step_fused(self, skipped: Tensor, scale: Tensor | None) -> None:
        optimizer: Any = self.optimizer
        optimizer.found_inf, optimizer.grad_scale = skipped, scale
        try:
            self._through.step()
        finally:
            del optimizer.found_inf, optimizer.grad_scale

    @torch.no_grad()
    def _step_and_restore(self, skipped: Tensor) -> None:
        tensors = [parameter.detach() for parameter, _ in self._gradients()]
        for parameter, _ in self._gradients():
            tensors += [
                value for value in self.optimizer.state.get(parameter, {}).values() if isinstance(value, Tensor)
            ]
        copies = [(tensor, tensor.clone()) for tensor in map(local_part, tensors)]
        self._through.step()
        is_skipped = skipped.bool()
        for tensor, before in copies:
            if tensor.is_cpu and not skipped.is_cpu:
                self._host_copies.append((tensor, before))
            else:
                torch.where(is_skipped.to(tensor.device, non_blocking=True), before, tensor, out=tensor)

    def _gradients(self) -> list[tuple[Tensor, Tensor]]:
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        return [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]


def _takes_flag(optimizer: Optimizer) -> bool:
    # Some optimizers declare the same, but take the whole scaler, as PyTorch once passed it; they go the third way.
    takes_scaler = "grad_scaler" in inspect.signature(optimizer.step).parameters
    return getattr(optimizer, "_step_supports_amp_scaling", False) and not takes_scaler
