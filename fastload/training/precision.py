"""The precision that a step trains in, by its short name, and what that name stands for in PyTorch."""

from __future__ import annotations

import warnings

import torch

__all__ = ["PRECISIONS", "autocast", "grad_scaler", "resolve_precision"]

PRECISIONS = ("auto", "fp32", "bf16", "fp16")

_AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


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
        return _fastest(device)
    if precision == "fp16" and device.type == "cpu":
        warnings.warn(
            "precision='fp16' needs an accelerator, but the model is on the CPU: computing in fp32 instead. "
            "Move the model to an accelerator, or pass precision='auto', 'fp32' or 'bf16'",
            stacklevel=3,
        )
        return "fp32"
    return precision


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the region for forward and loss; for fp32 one in which autocast is off."""
    dtype = _AUTOCAST_DTYPES.get(precision)
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def grad_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Return the loss's scaler: at work in fp16, whose small gradients vanish without it, else idle."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def _fastest(device: torch.device) -> str:
    if device.type == "cpu":
        return "fp32"
    bf16_supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    # Emulated bf16 counts as supported unless excluded, and is slower than fp32.
    return "bf16" if bf16_supported and bf16_supported(including_emulation=False) else "fp16"
