"""Copies into pinned memory, the large ones made by several threads."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from fastload.environment import cores

__all__ = ["Move", "copy_threads", "move"]

THREADS = 8
PIECE = 4 * 2**20  # bytes, at least, for a thread
SHORT = 64 * 2**10  # bytes that are copied sooner than the interpreter's lock has been given away and got back

Move = tuple[int, int, int]  # to which address, from which, and how many bytes

_move_keeping_the_lock = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)


def copy_threads() -> ThreadPoolExecutor:
    """Threads for :func:`move`, begun when they are needed first."""
    return ThreadPoolExecutor(min(THREADS, cores()), thread_name_prefix="fastload-move")


def move(moves: Iterable[Move], pool: ThreadPoolExecutor | None = None) -> None:
    """Copy bytes from place to place on the host, many of them by the threads of ``pool``, or by some of its own.

    >>> import torch
    >>> source, target = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    >>> move([(target.data_ptr(), source.data_ptr(), source.nbytes)])
    >>> target
    tensor([0, 1, 2])
    """
    long = []
    for one in moves:
        if one[2] < SHORT:
            _move_keeping_the_lock(*one)
        else:
            long.append(one)
    total = sum(size for _, _, size in long)
    threads = max(1, min(THREADS, cores(), total // PIECE))
    pieces = _pieces(long, -(-total // threads))
    if threads == 1:
        for piece in pieces:
            ctypes.memmove(*piece)
        return
    with copy_threads() if pool is None else nullcontext(pool) as threads_for_it:
        list(threads_for_it.map(lambda piece: ctypes.memmove(*piece), pieces))


def _pieces(moves: Iterable[Move], most: int) -> Iterator[Move]:
    """The same in pieces of so many bytes at most."""
    for target, source, size in moves:
        for start in range(0, size, most):
            yield target + start, source + start, min(most, size - start)
