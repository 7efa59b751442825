"""Pinned copies of large blocks of memory, made by several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

__all__ = ["copy", "pinned"]

THREADS = 4
PIECE = 4 * 2**20  # bytes, at least, for a thread


def pinned(block: torch.Tensor) -> torch.Tensor:
    """``block``, uint8 (bytes,), in pinned memory.

    A ``DataLoader`` pins with one thread, which was found to copy 2.5 GB/s out of its workers' memory and to hold up
    whole images (docs/decoding.md); several threads share the work.
    """
    target = torch.empty(block.shape, dtype=torch.uint8, pin_memory=True)
    copy(target, block)
    return target


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy uint8 (bytes,) on the CPU."""
    threads = min(THREADS, len(source) // PIECE)
    if threads == 0:
        target.copy_(source)
        return
    with ThreadPoolExecutor(threads) as pool:  # threads of its own: nothing outlives the call
        list(pool.map(torch.Tensor.copy_, target.chunk(threads), source.chunk(threads)))
