"""Bring a pass's parameters to the device in one copy."""

from __future__ import annotations

from itertools import accumulate

import torch

from fastload.streams import STREAMLESS, copy_beside

__all__ = ["upload"]

ALIGNMENT = 16  # bytes


def upload(device: torch.device, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """CPU tensors on ``device``, packed into one pinned block and copied at once, without making the host wait.

    What is already queued on the current stream does not hold them up.

    >>> upload(torch.device("cpu"), torch.arange(3), torch.ones(2))
    [tensor([0, 1, 2]), tensor([1., 1.])]
    """
    if device.type in STREAMLESS or not tensors:
        return [tensor.to(device) for tensor in tensors]
    *starts, size = accumulate((-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors), initial=0)
    block = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    for tensor, start in zip(tensors, starts, strict=True):
        array = tensor.numpy()
        block.numpy()[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
    moved = copy_beside(block, device)
    return [
        moved[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, start in zip(tensors, starts, strict=True)
    ]
