"""``Share``: which samples of an epoch come to this rank, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

from torch import distributed
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler

from fastload.resume.frameworks import wrapping_line

__all__ = ["Share", "samplers_of"]

# How it is known, as error messages and states name it.
SAMPLER, ACCELERATE, PROCESS_GROUP, ARGUMENT, ALONE = "sampler", "Accelerate", "torch.distributed", "shard", "alone"


@dataclass(frozen=True)
class Share:
    """The part of an epoch that comes to one of ``ranks``, which take turns: ``run`` samples each.

    >>> Share(rank=1, ranks=4)  # samples 1, 5, 9, … of the epoch
    Share(rank=1, ranks=4, run=1, known_by='alone')
    >>> Share(rank=1, ranks=4, run=2).first  # samples 2, 3, 10, 11, 18, …
    2

    ``known_by`` names who says so. docs/randomness.md has the rules.
    """

    rank: int = 0
    ranks: int = 1
    run: int = 1
    known_by: str = ALONE

    @classmethod
    def of(cls, loader: Any, shard: tuple[int, int] | None = None) -> Share:
        """The share that ``shard`` states; else what the loader's samplers know, else the process group."""
        if shard is not None:
            return cls(*shard, known_by=ARGUMENT)
        return _of_sampler(loader) or _of_accelerate(loader) or _of_process_group() or cls()

    @property
    def first(self) -> int:
        """The place in the epoch of this rank's first sample."""
        return self.rank * self.run

    @property
    def stride(self) -> int:
        """The distance in places between neighbours in a batch; a batch holds one run if runs are longer than 1."""
        return self.ranks if self.run == 1 else 1

    def remark(self, loader: Any) -> str | None:
        """What to warn the user of if each rank goes through all samples of ``loader``."""
        if self.known_by != PROCESS_GROUP or not _shares_nothing(loader):
            return None
        return (
            f"each of the {self.ranks} ranks of torch.distributed goes through all samples of this loader's data set: "
            f"{type(loader.sampler).__name__} shares nothing out. Pass "
            "sampler=torch.utils.data.DistributedSampler(dataset) to the DataLoader. If each rank's data set has "
            f"samples of its own, pass shard=({self.rank}, {self.ranks}), the rank and the number of ranks, to the "
            "PrefetchLoader; if all ranks are to see the same, shard=(0, 1)"
            + (f". {line}" if (line := wrapping_line()) else "")
        )


def samplers_of(loader: Any) -> list[Any]:
    """The loader's sampler, batch sampler and its sampler, then those that Accelerate's batch sampler wraps.

    A ``BatchSampler`` that is the loader's sampler, so that the data set gets all indices of a batch, is followed by
    its own.
    """
    sampler, batch_sampler = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    wrapped = getattr(batch_sampler, "batch_sampler", None)
    found = [sampler, batch_sampler, getattr(batch_sampler, "sampler", None)]
    found += [] if wrapped is None else [wrapped, getattr(wrapped, "sampler", None)]
    return [*found, sampler.sampler] if isinstance(sampler, BatchSampler) else found


def _of_sampler(loader: Any) -> Share | None:
    """Of ``DistributedSampler`` and samplers like it, which deal out samples in turn."""
    for sampler in samplers_of(loader):
        # MMEngine's samplers have a world_size.
        pair = _pair(sampler, "rank", "num_replicas") or _pair(sampler, "rank", "world_size")
        if pair is not None:
            return Share(*pair, known_by=SAMPLER)
    return None


def _of_accelerate(loader: Any) -> Share | None:
    """Of Accelerate's shards and dispatcher, which deal out batches in turn, or equal parts of each batch."""
    batch_sampler, dataset, state = (getattr(loader, name, None) for name in ("batch_sampler", "dataset", "state"))
    for owner, sized in ((batch_sampler, batch_sampler), (dataset, dataset), (state, loader)):
        pair = _pair(owner, "process_index", "num_processes")
        if pair is not None:
            size = getattr(sized, "batch_size", None) or 1
            run = size // pair[1] if getattr(sized, "split_batches", False) else size
            return Share(*pair, run=max(int(run), 1), known_by=ACCELERATE)
    return None


def _of_process_group() -> Share | None:
    """Of loaders that shard by themselves, or not at all: all that is known is that there are other ranks."""
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return None
    return Share(distributed.get_rank(), distributed.get_world_size(), known_by=PROCESS_GROUP)


def _pair(owner: Any, rank: str, ranks: str) -> tuple[int, int] | None:
    one, count = getattr(owner, rank, None), getattr(owner, ranks, None)
    return (int(one), int(count)) if isinstance(one, Integral) and isinstance(count, Integral) else None


def _shares_nothing(loader: Any) -> bool:
    """Whether a loader's samplers are PyTorch's own, and of those that give each sample to each rank."""
    sampler = getattr(loader, "sampler", None)
    return (
        isinstance(loader, DataLoader)
        and type(loader.batch_sampler) in (BatchSampler, type(None))
        and type(sampler) in (SequentialSampler, RandomSampler, SubsetRandomSampler)
        and not getattr(sampler, "replacement", False)
    )
