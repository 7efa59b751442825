"""Bring a pass's parameters to the device at once."""

from __future__ import annotations

from collections import deque
from importlib import import_module
from itertools import accumulate
from threading import Lock

import torch

from fastload.streams import Point, reached

__all__ = ["upload"]

ALIGNMENT = 64  # bytes


def upload(device: torch.device, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """CPU tensors on ``device``, packed into one pinned block and copied at once, without making the host wait.

    >>> upload(torch.device("cpu"), torch.arange(3), torch.ones(2))
    [tensor([0, 1, 2]), tensor([1., 1.])]

    On NVIDIA a kernel reads the block. The engine that copies memory would wait for the kernels queued before and let
    those behind wait again, for longer than a few kilobytes take; and it may have a whole batch to copy first.
    """
    if device.type in ("cpu", "mps"):
        return [tensor.to(device) for tensor in tensors]
    *starts, size = accumulate((-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors), initial=0)
    block = _blocks.lend(size)
    for tensor, start in zip(tensors, starts, strict=True):
        array = tensor.numpy()
        block.numpy()[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
    moved = _moved(block[:size], device)
    _blocks.take_back(block, reached(device))
    return [
        moved[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, start in zip(tensors, starts, strict=True)
    ]


def _moved(block: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type == "cuda" and torch.version.cuda is not None:
        # Triton is imported where it runs.
        moved: torch.Tensor = import_module("fastload.kernels.triton.read").read(block, device)
        return moved
    return block.to(device, non_blocking=True)


class _Blocks:
    """Pinned blocks, each lent again when the device has read it.

    PyTorch sees to that for memory that it copies, but does not know what a kernel reads.
    """

    LEAST = 2**16  # bytes; sizes are powers of two, so that passes which differ a little share blocks

    def __init__(self) -> None:
        self._lock = Lock()
        self._read: deque[tuple[torch.Tensor, Point]] = deque()

    def lend(self, size: int) -> torch.Tensor:
        with self._lock:
            block = self._read.popleft()[0] if self._read and self._read[0][1].passed() else None
        if block is None or len(block) < size:
            size = max(self.LEAST, 1 << (size - 1).bit_length())
            block = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return block

    def take_back(self, block: torch.Tensor, read: Point) -> None:
        self._read.append((block, read))


_blocks = _Blocks()
