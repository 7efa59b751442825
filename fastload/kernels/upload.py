"""Bring a pass's parameters to the device in one copy."""

from __future__ import annotations

import torch

__all__ = ["upload"]

ALIGNMENT = 16  # bytes


def upload(device: torch.device, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """CPU tensors on ``device``, packed into one pinned block and copied at once, without making the host wait.

    >>> upload(torch.device("cpu"), torch.arange(3), torch.ones(2))
    [tensor([0, 1, 2]), tensor([1., 1.])]
    """
    if device.type in ("cpu", "mps"):
        return [tensor.to(device) for tensor in tensors]
    sizes = [tensor.numel() * tensor.itemsize for tensor in tensors]
    starts = [0]
    for size in sizes:
        starts.append(-(-(starts[-1] + size) // ALIGNMENT) * ALIGNMENT)
    block = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=True)
    views = list(zip(tensors, starts, sizes, strict=False))
    memory = block.numpy()
    for tensor, start, size in views:
        memory[start : start + size].view(tensor.numpy().dtype).reshape(tensor.shape)[...] = tensor.numpy()
    moved = block.to(device, non_blocking=True)
    return [moved[start : start + size].view(tensor.dtype).view(tensor.shape) for tensor, start, size in views]
