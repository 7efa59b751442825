"""``SampleCounter``: how many samples the workers of a loader have made so far."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any

from torch.utils.data import Dataset, get_worker_info

__all__ = ["SampleCounter"]


class SampleCounter:
    """Counts the samples that each worker makes, in memory that the processes share.

    Each worker has a number of its own, so none waits for a lock, which one that is stopped might hold.
    """

    def __init__(self, workers: int) -> None:
        self.counts = RawArray("q", workers)

    def of(self, dataset: Dataset[Any]) -> Dataset[Any]:
        """Return the same data set, with its samples counted."""
        return _Counted(dataset, self)

    def total(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True)
class _Counted(Dataset[Any]):
    dataset: Dataset[Any]
    counter: SampleCounter

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        sample = self.dataset[index]
        worker = get_worker_info()
        assert worker is not None, "samples are counted in workers"
        self.counter.counts[worker.id] += 1
        return sample
