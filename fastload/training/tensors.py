"""Single tensors: a module's buffer, complex ones as real ones, and how an error names what it got instead of one."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

__all__ = ["Buffers", "buffer_now", "described", "real_view"]

Buffers: TypeAlias = dict[str, Tensor | None]  # a module's own, by name


def buffer_now(buffers: Buffers, name: str) -> Tensor | None:
    """Return the buffer that a module has at the moment, or None.

    >>> buffer_now(torch.nn.BatchNorm1d(1)._buffers, "running_mean"), buffer_now({}, "centre")
    (tensor([0.]), None)
    """
    return buffers[name] if name in buffers else None  # noqa: SIM401  (those of a ScriptModule have no get)


def real_view(tensor: Tensor) -> Tensor:
    """Return a view of a complex tensor as real and imaginary parts, in a last dimension of 2; others as they are.

    >>> real_view(torch.tensor([1 + 2j]))
    tensor([[1., 2.]])
    """
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def described(value: object) -> str:
    """Return what an error says that it got.

    >>> described(torch.zeros(2, 3)), described("text")
    ('a tensor of shape (2, 3)', 'a str')
    """
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
