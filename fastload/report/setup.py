"""``Setup``: how a loader is set up, as far as its speed depends on it."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

from fastload.environment import cores
from fastload.report.ranks import rank_count
from fastload.resume.wrapped_loader import torch_loader_in

__all__ = ["Setup"]

NAMES = ("transform", "transforms")
SHARED_MEMORY = Path("/dev/shm")
DEEPEST = 8  # data sets around each other
# Streams of which each worker loads a part of its own, without a line of the user's.
SHARING = {
    "webdataset.WebDataset",
    "litdata.StreamingDataset",
    "streaming.StreamingDataset",
    "datasets.IterableDataset",
}


@dataclass(frozen=True)
class Setup:
    """Where batches go, and what loads them.

    ``workers`` is None if no ``DataLoader`` is known; ``depth`` None if nothing is prefetched. ``images`` is what the
    images came as: ``"files"``, their dtype, or empty. ``transform`` names where the data set keeps a transform, which
    runs in the workers. ``shared_memory`` is the size of /dev/shm in bytes, 0 if there is none. ``ranks`` is how many
    processes train together. ``launches`` is the language from which compiled models launch their kernels: ``"Python"``
    or ``"C++"``, or empty if this process has compiled none. ``shares_out`` is whether each worker is known to load a
    part of the data set of its own, which an ``IterableDataset`` has to see to.
    """

    device: str = "cpu"
    cores: int = 1
    workers: int | None = None
    prefetch_factor: int = 2
    pin_memory: bool = False
    persistent_workers: bool = False
    in_order: bool = True
    depth: int | None = None
    images: str = ""
    transform: str = ""
    shared_memory: int = 0
    ranks: int = 1
    launches: str = ""
    shares_out: bool = True

    @classmethod
    def of(cls, loader: Any, device: str, depth: int | None = None, images: str = "") -> Setup:
        """The set-up of ``loader``, and what is prefetched from it to ``device``."""
        inner = torch_loader_in(loader)
        if inner is None:
            return cls(device, cores(), depth=depth, images=images, ranks=rank_count(), launches=_launches())
        return cls(
            device=device,
            cores=cores(),
            workers=inner.num_workers,
            prefetch_factor=inner.prefetch_factor or 2,
            pin_memory=inner.pin_memory,
            persistent_workers=inner.persistent_workers,
            in_order=getattr(inner, "in_order", True),
            depth=depth,
            images=images,
            transform=_transform_of(inner.dataset),
            shared_memory=shutil.disk_usage(SHARED_MEMORY).total if SHARED_MEMORY.exists() else 0,
            ranks=rank_count(),
            launches=_launches(),
            shares_out=_shares_out(inner.dataset),
        )

    @property
    def has_device(self) -> bool:
        """Whether batches go to memory other than the host's."""
        return self.device != "cpu"

    def asked_by(self, workers: int) -> str:
        """What so many workers ask of the data set, as a sentence after another; empty if nothing."""
        if self.shares_out or workers <= 1:
            return ""
        return (
            " The data set must give each worker a part of its own, by torch.utils.data.get_worker_info(): else each "
            "worker yields all samples."
        )


def _launches() -> str:
    dynamo, inductor = (sys.modules.get(name) for name in ("torch._dynamo.utils", "torch._inductor.config"))
    if dynamo is None or inductor is None or not dynamo.counters["stats"]["unique_graphs"]:
        return ""
    return "C++" if inductor.cpp_wrapper else "Python"


def _shares_out(dataset: Any) -> bool:
    names = {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(dataset).__mro__}
    return not isinstance(dataset, IterableDataset) or not names.isdisjoint(SHARING)


def _transform_of(dataset: Any) -> str:
    """The path of a data set's transform, also of one that it is a part of; empty if there is none."""
    path = "dataset"
    for _ in range(DEEPEST):
        own = next((name for name in NAMES if callable(getattr(dataset, name, None))), None)
        if own is not None:
            return f"{path}.{own}"
        dataset = getattr(dataset, "dataset", None) or next(iter(getattr(dataset, "datasets", [])), None)
        path += ".dataset"
    return ""
