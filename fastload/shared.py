"""Shared memory in which a worker hands a large block to the training process."""

from __future__ import annotations

import mmap
import os
import weakref
from multiprocessing.reduction import DupFd
from typing import Any

import torch

__all__ = ["Shared", "received"]


class Shared:
    """A block of memory that a process can hand to another: uint8 (bytes,), writable.

    >>> shared = Shared(4)
    >>> received(*shared.handle()) is not shared.block  # usually in the other process
    True

    PyTorch's own shared tensors are taken apart under the interpreter's lock. That took 60 ms for 144 MB, in which the
    thread that feeds the GPU stood still (docs/decoding.md). A mapping is taken apart without it. The memory also does
    not lie in /dev/shm, which is small in many containers.

    Raises:
        OSError: there is not so much memory, or no memory can be shared so: on Linux only.
    """

    def __init__(self, size: int) -> None:
        self._descriptor = os.memfd_create("fastload")
        weakref.finalize(self, os.close, self._descriptor)
        os.ftruncate(self._descriptor, size)
        self.block = _mapped(self._descriptor, size)

    def handle(self) -> tuple[Any, int]:
        """What :func:`received` takes; made while it is being sent to the other process."""
        return DupFd(self._descriptor), len(self.block)


def received(descriptor: Any, size: int) -> torch.Tensor:
    """The same memory in the process that a handle was sent to."""
    opened = descriptor.detach()
    try:
        return _mapped(opened, size)
    finally:
        os.close(opened)


def _mapped(descriptor: int, size: int) -> torch.Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)  # the tensor keeps the mapping
