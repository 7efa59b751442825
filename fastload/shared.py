"""Shared memory in which workers hand large blocks to the training process, and which they use again."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from multiprocessing.reduction import DupFd
from typing import Any

import torch

__all__ = ["Handle", "Shared", "received"]

MOST_HOLDERS = mmap.PAGESIZE  # each has a byte of one page
FREE, HELD = b"\0", b"\1"
Handle = tuple[Any, int, int, int]


class Shared:
    """A block of memory that a process can hand to another: uint8 (bytes,), writable, of any content at first.

    >>> shared = Shared(4)
    >>> other = received(*shared.handle())  # usually in the other process
    >>> shared.block.fill_(7)
    tensor([7, 7, 7, 7], dtype=torch.uint8)
    >>> other
    tensor([7, 7, 7, 7], dtype=torch.uint8)

    The memory is used for another block once no process has any tensor of this one left. Memory that is new costs a
    fault and a clearing for each of its pages, which can take longer than to decode the images that it is for.

    PyTorch's own shared tensors are also taken apart under the interpreter's lock: the thread that feeds the GPU stands
    still meanwhile. docs/decoding.md has the figures of both. Nor does the memory lie in /dev/shm, which is small in
    many containers.

    Raises:
        OSError: there is not so much memory, or no memory can be shared so: on Linux only.
    """

    def __init__(self, size: int) -> None:
        self._segment = _lent(size)
        view = memoryview(self._segment.memory)[:size]  # which every tensor of the block keeps
        weakref.finalize(view, _segments.append, self._segment).atexit = False
        self.block = torch.frombuffer(view, dtype=torch.uint8)

    def handle(self) -> Handle:
        """What :func:`received` takes, once; made while it is being sent to the other process."""
        return self._segment.handle(len(self.block))


def received(descriptor: Any, size: int, capacity: int, holder: int) -> torch.Tensor:
    """The same memory in the process that a handle was sent to."""
    opened = descriptor.detach()
    try:
        memory = mmap.mmap(opened, size)
        holders = mmap.mmap(opened, MOST_HOLDERS, offset=capacity)
    finally:
        os.close(opened)
    weakref.finalize(memory, _release, holders, holder).atexit = False
    return torch.frombuffer(memory, dtype=torch.uint8)  # the tensor keeps the mapping


def _release(holders: mmap.mmap, holder: int) -> None:
    holders[holder : holder + 1] = FREE
    holders.close()


class _Segment:
    """``capacity`` bytes for blocks, and behind them a byte for each holder in other processes: whether it is there."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._owner = os.getpid()
        self._descriptor = os.memfd_create("fastload")
        weakref.finalize(self, os.close, self._descriptor)
        os.ftruncate(self._descriptor, capacity + MOST_HOLDERS)
        self.memory = mmap.mmap(self._descriptor, capacity + MOST_HOLDERS)
        self._turn = threading.Lock()

    def handle(self, size: int) -> Handle:
        with self._turn:
            free = self.memory.find(FREE, self.capacity)
            if free < 0:
                raise OSError(f"a block of memory can be handed to {MOST_HOLDERS:,} holders at a time, and has so many")
            self.memory[free : free + 1] = HELD
        return DupFd(self._descriptor), size, self.capacity, free - self.capacity

    @property
    def is_free(self) -> bool:
        """Whether nobody has any of it, and it is this process's to give away, not one's that this was forked from."""
        return self._owner == os.getpid() and self.memory.find(HELD, self.capacity) < 0


# Those of this process of which it has no tensor left itself.
_segments: list[_Segment] = []


def _lent(size: int) -> _Segment:
    """The smallest of the segments that are free and large enough; or a new one, for one that is too small."""
    free = sorted((each for each in _segments if each.is_free), key=lambda each: each.capacity)
    segment = next((each for each in free if each.capacity >= size), None)
    if segment is not None:
        _segments.remove(segment)
        return segment
    if free:
        _segments.remove(free[-1])
    return _Segment(_roomy(size))


def _roomy(size: int) -> int:
    """``size`` in whole pages and a quarter more, so that batches which differ a little find room in it."""
    pages = -(-size // mmap.PAGESIZE)
    return (pages + pages // 4) * mmap.PAGESIZE
