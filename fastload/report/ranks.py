"""``gathered``: the stats of all ranks."""

from __future__ import annotations

from typing import Any

from torch import distributed

from fastload.stats.stats import Stats

__all__ = ["gathered"]


def gathered(stats: Stats) -> list[Stats]:
    """The stats of all ranks of ``torch.distributed``, by rank; of this process alone if there is no group.

    >>> gathered(Stats()) == [Stats()]
    True
    """
    if not distributed.is_available() or not distributed.is_initialized():
        return [stats]
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, stats)
    return found
