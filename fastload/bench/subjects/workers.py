"""How many workers a loader starts, by what they do."""

from __future__ import annotations

from fastload.environment import cores

__all__ = ["READING_WORKERS", "decoding_workers", "worker_count"]

MOST_WORKERS = 14
READING_WORKERS = min(8, cores())  # they only read files


def worker_count() -> int:
    """Return the workers for decoded images: all cores but two, for training and the pinning thread; at most 14."""
    return max(1, min(MOST_WORKERS, cores() - 2))


def decoding_workers() -> int:
    """Return the workers, or threads, that decode on the CPU: all cores but one, for training."""
    return max(1, cores() - 1)
