"""``Ring``: the pinned blocks from which the device copies while the host fills the next."""

from __future__ import annotations

from collections import deque

import torch

from fastload.streams import Point
from fastload.transfer.pinned import movers

__all__ = ["Ring"]


class Ring:
    """At most ``MOST`` pinned blocks, each as large as was needed; lent again when the device has read it.

    >>> from fastload.streams import Passed
    >>> ring = Ring()
    >>> block = ring.lend(100)
    >>> ring.take_back(block, Passed())
    >>> ring.lend(80) is block
    True

    Where there is no device to pin for, the memory is ordinary. ``movers`` are the threads that fill it. One thread may
    borrow and another return; who borrows several before the first is returned gets more than ``MOST``.
    """

    # One that the device reads, one that the host fills: copies of one stream go one after the other.
    MOST = 2

    # Bytes, at least, and sizes are powers of two: batches that differ a little share a block.
    LEAST = 2**16

    def __init__(self) -> None:
        self.movers = movers()
        self._blocks: deque[tuple[torch.Tensor, Point]] = deque()  # and how far the device must be to have read each

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

    def take_back(self, block: torch.Tensor, read: Point) -> None:
        """``block`` is free when the device has come to ``read``."""
        self._blocks.append((block, read))

    def close(self) -> None:
        """End the threads, and let go of all blocks; PyTorch uses their memory again when the device has read it."""
        self.movers.shutdown()
        self._blocks.clear()
