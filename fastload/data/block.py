"""``Block``: memory that the files of a batch are written to, one behind the other."""

from __future__ import annotations

import os
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from fastload.data.encoded import ALIGNMENT
from fastload.data.shared_memory import Shared

__all__ = ["Block"]


class Block:
    """Bytes of files or pixels, each at a multiple of ``ALIGNMENT``, in memory that grows.

    >>> block = Block()
    >>> block.free[:3] = b"abc"  # as a file is read
    >>> block.put(block.free[:3]), block.put(b"defg")
    (0, 256)
    >>> block.finished().shape
    torch.Size([512])

    In a worker it is shared with the training process. How many bytes it will take is not known before the files are
    read: it begins with what blocks took of late, so that few have to grow.

    Attributes:
        free: the memory behind what was put, which is where the next file may be read. :meth:`put` makes it anew.
    """

    free: memoryview
    _usual: ClassVar[int] = 2**20  # bytes of the largest block of late

    def __init__(self) -> None:
        self._used = 0
        self._take(_empty(_aligned(Block._usual + Block._usual // 8)))

    def put(self, data: bytes | NDArray[np.uint8] | memoryview) -> int:
        """Append bytes, and return their offset, 0 if there are none. A memoryview is the beginning of ``free``."""
        if not isinstance(data, memoryview):
            if len(data) > len(self.free):
                self._grow(len(data))
            self._bytes[self._used : self._used + len(data)] = np.frombuffer(data, np.uint8)
        offset = self._used if len(data) else 0
        self._used += _aligned(len(data))
        self.free = self._bytes[self._used :].data
        return offset

    def finished(self) -> torch.Tensor | Shared:
        """What was put, as memory that can be sent. Nothing can be put any more."""
        size = max(self._used, ALIGNMENT)
        Block._usual = max(size, Block._usual - Block._usual // 8)
        if isinstance(self._memory, Shared):
            self._memory.cut(size)
            return self._memory
        return self._memory[:size]

    def _grow(self, needed: int) -> None:
        used = self._bytes[: self._used]
        self._take(_empty(_aligned(max(2 * len(self._bytes), self._used + needed))))
        self._bytes[: self._used] = used

    def _take(self, memory: torch.Tensor | Shared) -> None:
        self._memory = memory
        self._bytes = (memory.block if isinstance(memory, Shared) else memory).numpy()
        self.free = self._bytes[self._used :].data


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _empty(size: int) -> torch.Tensor | Shared:
    if get_worker_info() is None or not hasattr(os, "memfd_create"):  # shared on Linux only
        return torch.empty(size, dtype=torch.uint8)
    return Shared(size)
