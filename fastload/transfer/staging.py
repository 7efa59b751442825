"""``StagingPool``: the pinned blocks from which the device copies while the host fills the next."""

from __future__ import annotations

from collections import deque

import torch

from fastload.streams import Fence
from fastload.transfer.pinned import copy_threads

__all__ = ["StagingPool"]


class StagingPool:
    """At most ``MOST`` pinned blocks, each as large as was needed; lent again when the device has read it.

    >>> from fastload.streams import DoneFence
    >>> ring = StagingPool()
    >>> block = ring.lend(100)
    >>> ring.take_back(block, DoneFence())
    >>> ring.lend(80) is block
    True

    Without an accelerator the memory is not pinned. The threads of ``copy_threads`` fill it. One thread may borrow and
    another return; who borrows several before the first is returned gets more than ``MOST``.
    """

    # One that the device reads, one that the host fills: copies of one stream go one after the other.
    MOST = 2

    # Bytes, at least, and sizes are powers of two: batches that differ a little share a block.
    LEAST = 2**16

    def __init__(self) -> None:
        self.copy_threads = copy_threads()
        self._blocks: deque[tuple[torch.Tensor, Fence]] = deque()  # and how far the device must be to have read each

    def lend(self, size: int) -> torch.Tensor:
        """A block of ``size`` bytes or more, uint8 (bytes,); waits for the device if all are being read."""
        if self._blocks and (len(self._blocks) >= self.MOST or self._blocks[0][1].passed()):
            block, point = self._blocks.popleft()
            point.wait()
            if len(block) >= size:
                return block
            del block  # before a larger one is taken
        size = max(self.LEAST, 1 << (size - 1).bit_length())
        return torch.empty(size, dtype=torch.uint8, pin_memory=torch.accelerator.is_available())

    def take_back(self, block: torch.Tensor, read: Fence) -> None:
        """``block`` is free when the device has come to ``read``."""
        self._blocks.append((block, read))

    def close(self) -> None:
        """End the threads, and let go of all blocks; PyTorch uses their memory again when the device has read it."""
        self.copy_threads.shutdown()
        self._blocks.clear()
