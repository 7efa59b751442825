"""Precision by its short name: the autocast region and loss scaler it stands for, also in ``DataParallel`` replicas."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fastload.environment import fastest_float

__all__ = ["PRECISIONS", "autocast", "carry_autocast_to_replicas", "grad_scaler", "resolve_precision"]

PRECISIONS = ("auto", "fp32", "bf16", "fp16")

_AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def resolve_precision(precision: str, device: torch.device) -> str:
    """Return the precision to compute in on this device: ``"fp32"``, ``"bf16"`` or ``"fp16"``.

    >>> resolve_precision("auto", torch.device("cpu"))
    'fp32'

    ``"auto"`` is bf16 where the accelerator computes it natively, fp16 on other accelerators, fp32 on the
    CPU. fp16 on the CPU warns and becomes fp32. Raises ValueError if ``precision`` is none of ``PRECISIONS``.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(map(repr, PRECISIONS))}; got {precision!r}")
    if precision == "auto":
        return _NAMES[fastest_float(device)]
    if precision == "fp16" and device.type == "cpu":
        warnings.warn(
            "precision='fp16' needs an accelerator, but the model is on the CPU: computing in fp32 instead. "
            "Move the model to an accelerator, or pass precision='auto', 'fp32' or 'bf16'",
            stacklevel=3,
        )
        return "fp32"
    return precision


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the context for forward and loss; for fp32 one in which autocast is off."""
    dtype = _AUTOCAST_DTYPES.get(precision)
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def grad_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Return the loss scaler: enabled in fp16, where small gradients vanish without it, else disabled."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def carry_autocast_to_replicas(models: Sequence[nn.Module], device: torch.device) -> Iterator[RemovableHandle]:
    """Make the replicas of each ``nn.DataParallel`` compute under the autocast of the thread that calls it.

    Autocast belongs to a thread, and each replica computes in a thread of its own. PyTorch enables autocast there if it
    is enabled in the caller's thread, but with the default dtype: float16 on CUDA, even if the caller's is bfloat16.

    Yields the handles of the hooks that do so.
    """
    for module in (module for model in models for module in model.modules()):
        if isinstance(module, nn.DataParallel):
            carried = _ReplicaAutocast(device)
            yield module.register_forward_pre_hook(carried.record)
            yield module.module.register_forward_pre_hook(carried.apply)


class _ReplicaAutocast:
    """Records the caller's autocast before ``DataParallel`` runs, and sets it in each replica's thread.

    The hooks are bound methods because those can be copied and pickled with the model.
    """

    def __init__(self, device: torch.device) -> None:
        self._device_type = device.type
        self.record()

    def record(self, *_: object) -> None:
        self._enabled = torch.is_autocast_enabled(self._device_type)
        self._dtype = torch.get_autocast_dtype(self._device_type)

    def apply(self, module: nn.Module, _: object) -> None:
        if getattr(module, "_is_replica", False):  # PyTorch's mark; nothing to restore, as its thread ends after it
            torch.set_autocast_enabled(self._device_type, self._enabled)
            torch.set_autocast_dtype(self._device_type, self._dtype)
