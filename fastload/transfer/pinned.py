"""Pinned memory to copy through: the pool of blocks, and the threads that fill them."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import torch

from fastload.environment import cores
from fastload.streams import DoneFence, Fence

__all__ = ["HostCopy", "StagingPool", "copy_threads", "memcpy"]

THREADS = 8
PIECE = 4 * 2**20  # bytes, at least, for a thread
SHORT = 64 * 2**10  # bytes that are copied sooner than the interpreter's lock has been given away and got back

HostCopy = tuple[int, int, int]  # to which address, from which, and how many bytes


class StagingPool:
    """At most ``MOST`` pinned blocks, each as large as was needed; used again once the device has read it.

    >>> from fastload.streams import DoneFence
    >>> pool = StagingPool()
    >>> block = pool.acquire(100)
    >>> pool.release(block, DoneFence())
    >>> pool.acquire(80) is block
    True

    Without an accelerator the memory is not pinned. One thread may acquire a block and another release it. Who
    acquires several before releasing the first gets more than ``MOST``.

    Args:
        reserve: how many blocks to take as soon as the first is needed. To take one keeps all threads from the device
            for tens of milliseconds, which is better done before training begins.
    """

    # One that the device reads, one that the host fills: copies of one stream go one after the other.
    MOST = 2

    # Bytes, at least, and sizes are powers of two: batches that differ a little share a block.
    LEAST = 2**16

    def __init__(self, reserve: int = 0) -> None:
        self.threads = copy_threads()
        self._reserve = reserve  # blocks that are yet to be taken
        self._blocks: deque[tuple[torch.Tensor, Fence]] = deque()  # each with what to wait for before it is used again

    def acquire(self, size: int) -> torch.Tensor:
        """A block of ``size`` bytes or more, uint8 (bytes,); waits for the device if all are being read."""
        self._take_reserve(size)
        if self._blocks and (len(self._blocks) >= self.MOST or self._blocks[0][1].passed()):
            block, read = self._blocks.popleft()
            read.wait()
            if len(block) >= size:
                return block
            del block  # before a larger one is taken
        return self._new(size)

    def release(self, block: torch.Tensor, read: Fence) -> None:
        """``block`` may be used again once the device has passed ``read``."""
        self._blocks.append((block, read))

    def close(self) -> None:
        """End the threads and drop all blocks; PyTorch reuses their memory once the device has read it."""
        self.threads.shutdown()
        self._blocks.clear()

    def _take_reserve(self, size: int) -> None:
        count, self._reserve = self._reserve, 0
        with suppress(RuntimeError):  # fewer may do where memory lacks
            for _ in range(count):
                self.release(self._new(size), DoneFence())

    def _new(self, size: int) -> torch.Tensor:
        size = max(self.LEAST, 1 << (size - 1).bit_length())
        return torch.empty(size, dtype=torch.uint8, pin_memory=torch.accelerator.is_available())


def copy_threads() -> ThreadPoolExecutor:
    """Threads for :func:`memcpy`; each starts when it is first needed."""
    return ThreadPoolExecutor(min(THREADS, cores()), thread_name_prefix="fastload-memcpy")


def memcpy(copies: Iterable[HostCopy], threads: ThreadPoolExecutor | None = None, least: int = PIECE) -> None:
    """Copy bytes from place to place on the host; large copies are split over ``threads``, or over some of its own.

    Each thread copies ``least`` bytes or more.

    >>> import torch
    >>> source, target = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    >>> memcpy([(target.data_ptr(), source.data_ptr(), source.nbytes)])
    >>> target
    tensor([0, 1, 2])
    """
    long = []
    for one in copies:
        if one[2] < SHORT:
            _memmove_keeping_the_lock(*one)
        else:
            long.append(one)
    total = sum(size for _, _, size in long)
    count = max(1, min(THREADS, cores(), total // least))
    pieces = _pieces(long, -(-total // count))
    if count == 1:
        for piece in pieces:
            ctypes.memmove(*piece)
        return
    with copy_threads() if threads is None else nullcontext(threads) as pool:
        list(pool.map(lambda piece: ctypes.memmove(*piece), pieces))


_memmove_keeping_the_lock = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)


def _pieces(copies: Iterable[HostCopy], most: int) -> Iterator[HostCopy]:
    """The same copies in pieces of at most so many bytes."""
    for target, source, size in copies:
        for start in range(0, size, most):
            yield target + start, source + start, min(most, size - start)
