"""``Shared``: blocks of shared memory, in which workers send files to the training process, and which are reused."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import secrets
import threading
import weakref
from multiprocessing.resource_sharer import DupFd

import torch

__all__ = ["Handle", "Shared", "received"]

MOST_RECEIVERS = mmap.PAGESIZE - 1  # each has one byte of a page; the first byte is the segment's own
FREE, HELD = b"\0", b"\1"  # of a receiver
KEPT, GONE = b"\2", b"\3"  # of a segment: the parent process keeps it mapped; nothing more will be sent in it
Handle = tuple[int, DupFd | None, int, int, int, int]


class Shared:
    """A block of shared memory, uint8 (bytes,), uninitialised, that a process can send to another without a copy.

    >>> shared = Shared(4)
    >>> other = received(*shared.handle())  # usually in the other process
    >>> shared.block.fill_(7)
    tensor([7, 7, 7, 7], dtype=torch.uint8)
    >>> other
    tensor([7, 7, 7, 7], dtype=torch.uint8)

    The memory is reused for another block once no process has a tensor of this one. For new memory the kernel has to
    fault in and clear every page, which can take longer than decoding the images in it.

    PyTorch's own shared tensors are not reused. They are also unmapped while the interpreter's lock is held, which
    stops the thread that feeds the GPU; docs/notes/shared-memory.md has figures. This memory also
    takes no space in /dev/shm, which is small in many containers.

    Raises:
        OSError: there is not enough memory, or the system is not Linux.
    """

    def __init__(self, size: int) -> None:
        self._segment = _acquire(size)
        view = memoryview(self._segment.memory)[:size]  # every tensor of the block keeps it alive
        weakref.finalize(view, _segments.append, self._segment).atexit = False
        self.block = torch.frombuffer(view, dtype=torch.uint8)

    def cut(self, size: int) -> None:
        """Let the block end after ``size`` bytes."""
        self.block = self.block[:size]

    def handle(self) -> Handle:
        """The arguments of :func:`received`, for one call, while this process lives."""
        return self._segment.handle(len(self.block))


def received(owner: int, descriptor: DupFd | None, name: int, capacity: int, size: int, holder: int) -> torch.Tensor:
    """The block of a handle in the process that it was sent to, uint8 (bytes,), without a copy.

    Raises:
        ConnectionResetError: the process that sent it has ended.
    """
    memory = _mappings[name] if descriptor is None else _mapped(owner, descriptor, name, capacity)
    view = memoryview(memory)[:size]
    weakref.finalize(view, _release, memory, capacity + holder, os.getpid()).atexit = False
    return torch.frombuffer(view, dtype=torch.uint8)


def _release(memory: mmap.mmap, holder: int, receiver: int) -> None:
    if os.getpid() == receiver:  # a process forked from the receiver has a copy of its tensors, and releases nothing
        memory[holder : holder + 1] = FREE


# Segments that child processes have sent to this one, by name. They stay mapped: mapping and unmapping memory for each
# block costs as much as copying it.
_mappings: dict[int, mmap.mmap] = {}


def _mapped(owner: int, descriptor: DupFd, name: int, capacity: int) -> mmap.mmap:
    try:
        opened = descriptor.detach()
    except (ConnectionError, FileNotFoundError, EOFError) as error:  # of the socket on which the owner would answer
        raise ConnectionResetError(f"process {owner} has ended before its memory was received: {error!r}") from error
    try:
        memory = mmap.mmap(opened, capacity + mmap.PAGESIZE)
    finally:
        os.close(opened)
    _keep(owner, name, memory, capacity)
    return memory


def _keep(owner: int, name: int, memory: mmap.mmap, capacity: int) -> None:
    """Keep a segment mapped until the child process that owns it ends or discards it."""
    for other, mapping in list(_mappings.items()):
        if mapping[-mmap.PAGESIZE] == GONE[0]:
            _mappings.pop(other, None)
    child = next((each for each in multiprocessing.active_children() if each.pid == owner), None)
    if child is not None:
        _mappings[name] = memory
        weakref.finalize(child, _mappings.pop, name, None).atexit = False
        memory[capacity : capacity + 1] = KEPT


class _Segment:
    """``capacity`` bytes for a block, and a page behind them: KEPT, GONE or 0, then HELD or FREE for each receiver."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._name = secrets.randbits(64)
        self._owner = os.getpid()
        self._descriptor = os.memfd_create("fastload")
        weakref.finalize(self, os.close, self._descriptor)
        os.ftruncate(self._descriptor, capacity + mmap.PAGESIZE)
        self.memory = mmap.mmap(self._descriptor, capacity + mmap.PAGESIZE)
        self._lock = threading.Lock()

    def handle(self, size: int) -> Handle:
        with self._lock:
            free = self.memory.find(FREE, self.capacity + 1)
            if free < 0:
                raise OSError(
                    f"a block can be sent {MOST_RECEIVERS:,} times until it is released, and has been sent so often"
                )
            self.memory[free : free + 1] = HELD
        # A descriptor costs a connection between the processes: it is sent until the receiver has kept the memory.
        is_kept = self.memory[self.capacity : self.capacity + 1] == KEPT
        descriptor = None if is_kept else DupFd(self._descriptor)
        return self._owner, descriptor, self._name, self.capacity, size, free - self.capacity

    def discard(self) -> None:
        """Tell other processes that nothing more will be sent in it, so that they unmap it."""
        self.memory[self.capacity : self.capacity + 1] = GONE

    @property
    def is_free(self) -> bool:
        """Whether no receiver holds it, and this process made it rather than the one that it was forked from."""
        return self._owner == os.getpid() and self.memory.find(HELD, self.capacity) < 0


# The segments of this process without a tensor of their block in it; receivers may still hold some.
_segments: list[_Segment] = []


def _acquire(size: int) -> _Segment:
    """The smallest free segment that is large enough; otherwise a new one, in place of the largest free one."""
    free = sorted((each for each in _segments if each.is_free), key=lambda each: each.capacity)
    segment = next((each for each in free if each.capacity >= size), None)
    if segment is not None:
        _segments.remove(segment)
        return segment
    if free:
        free[-1].discard()
        _segments.remove(free[-1])
    return _Segment(_capacity(size))


def _capacity(size: int) -> int:
    """``size`` in whole pages and a quarter more, so that batches of slightly different sizes fit."""
    pages = -(-size // mmap.PAGESIZE)
    return (pages + pages // 4) * mmap.PAGESIZE
