"""Shared memory in which workers hand large blocks to the training process, and which both use again."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import secrets
import threading
import weakref

import torch

__all__ = ["Handle", "Shared", "received"]

MOST_HOLDERS = mmap.PAGESIZE - 1  # each has a byte of one page, behind the first
FREE, HELD, GONE = b"\0", b"\1", b"\2"
Handle = tuple[int, int, int, int, int, int]


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
        """What :func:`received` takes, once, while this process lives."""
        return self._segment.handle(len(self.block))


def received(owner: int, descriptor: int, name: int, capacity: int, size: int, holder: int) -> torch.Tensor:
    """The same memory in the process that a handle was sent to.

    Raises:
        ConnectionResetError: the process that sent it has ended.
    """
    memory = _mapped(owner, descriptor, name, capacity)
    view = memoryview(memory)[:size]
    weakref.finalize(view, _release, memory, capacity + holder, os.getpid()).atexit = False
    return torch.frombuffer(view, dtype=torch.uint8)


def _release(memory: mmap.mmap, holder: int, receiver: int) -> None:
    if os.getpid() == receiver:  # a process forked from it has the block too, and not the right to give it back
        memory[holder : holder + 1] = FREE


# What child processes have handed to this one, by its name. To map memory anew, and to take it apart again, costs as
# much as copying it.
_mappings: dict[int, tuple[mmap.mmap, int]] = {}


def _mapped(owner: int, descriptor: int, name: int, capacity: int) -> mmap.mmap:
    if name in _mappings:
        return _mappings[name][0]
    try:
        opened = os.open(f"/proc/{owner}/fd/{descriptor}", os.O_RDWR)
    except OSError as error:
        raise ConnectionResetError(f"process {owner} has ended before all it sent was received: {error}") from error
    try:
        memory = mmap.mmap(opened, capacity + mmap.PAGESIZE)
    finally:
        os.close(opened)
    _keep(owner, name, memory, capacity)
    return memory


def _keep(owner: int, name: int, memory: mmap.mmap, capacity: int) -> None:
    """Until the child process that it is of ends, or has no use for it any more, which it tells before it has other."""
    for other, (mapping, size) in list(_mappings.items()):
        if mapping[size : size + 1] == GONE:
            _mappings.pop(other, None)
    child = next((each for each in multiprocessing.active_children() if each.pid == owner), None)
    if child is not None:
        _mappings[name] = memory, capacity
        weakref.finalize(child, _mappings.pop, name, None).atexit = False


class _Segment:
    """``capacity`` bytes for blocks, and behind them a page that tells whether it is gone, and who else holds any."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._name = secrets.randbits(64)
        self._owner = os.getpid()
        self._descriptor = os.memfd_create("fastload")
        weakref.finalize(self, os.close, self._descriptor)
        os.ftruncate(self._descriptor, capacity + mmap.PAGESIZE)
        self.memory = mmap.mmap(self._descriptor, capacity + mmap.PAGESIZE)
        self._turn = threading.Lock()

    def handle(self, size: int) -> Handle:
        with self._turn:
            free = self.memory.find(FREE, self.capacity + 1)
            if free < 0:
                raise OSError(f"a block of memory can be handed to {MOST_HOLDERS:,} holders at a time, and has so many")
            self.memory[free : free + 1] = HELD
        return self._owner, self._descriptor, self._name, self.capacity, size, free - self.capacity

    def discard(self) -> None:
        """Let other processes know that nothing more will come in it."""
        self.memory[self.capacity : self.capacity + 1] = GONE

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
        free[-1].discard()
        _segments.remove(free[-1])
    return _Segment(_roomy(size))


def _roomy(size: int) -> int:
    """``size`` in whole pages and a quarter more, so that batches which differ a little find room in it."""
    pages = -(-size // mmap.PAGESIZE)
    return (pages + pages // 4) * mmap.PAGESIZE
