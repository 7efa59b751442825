"""Copy a kernel's parameters to the device in one transfer."""

from __future__ import annotations

from itertools import accumulate

import torch

from fastload.streams import STREAMLESS, copy_beside

__all__ = ["upload"]

ALIGNMENT = 16  # bytes: each tensor begins at a multiple in the buffer


def upload(device: torch.device, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Copy CPU tensors to ``device``: packed into one pinned buffer, sent in one asynchronous transfer.

    >>> upload(torch.device("cpu"), torch.arange(3), torch.ones(2))
    [tensor([0, 1, 2]), tensor([1., 1.])]

    The host does not wait. The transfer has a stream of its own, so it does not queue behind the current stream's
    earlier work; the current stream waits for it.

    Args:
        device: where to.
        tensors: on the CPU, of any shapes and dtypes.

    Returns:
        The tensors on ``device``, in the same order. They share one allocation.
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
