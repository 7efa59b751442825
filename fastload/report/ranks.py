"""``gathered``: the stats of all ranks; ``rank_count``: how many there are."""

from __future__ import annotations

from typing import Any

from torch import distributed

from fastload.stats.stats import Stats

__all__ = ["gathered", "rank_count"]


def rank_count() -> int:
    """The number of ranks of ``torch.distributed``; 1 if there is no group.

    >>> rank_count()
    1
    """
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def gathered(stats: Stats) -> list[Stats]:
    """The stats of all ranks of ``torch.distributed``, by rank; of this process alone if there is no group.

    >>> gathered(Stats()) == [Stats()]
    True
    """
    if rank_count() == 1:
        return [stats]
    found: list[Any] = [None] * rank_count()
    distributed.all_gather_object(found, stats)
    return found
