"""``cores``: how many processors this process may use."""

import os

__all__ = ["cores"]


def cores() -> int:
    """Those that it was given, which may be fewer than the machine has.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
