"""``with_dataset``: a ``DataLoader`` like another, over another data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from fastload.offload.error import CannotOffloadError

__all__ = ["with_dataset"]

# Arguments of DataLoader that are its attributes of the same name.
SETTINGS = (
    "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order", "snapshot_every_n_steps",
)  # fmt: skip


def with_dataset(loader: DataLoader[Any], dataset: Any, collate: Callable[[Any], Any]) -> DataLoader[Any]:
    """Make a loader of the same type, sampler, batch size, workers and generator.

    Raises:
        CannotOffloadError: the loader is of a class that may take other arguments than ``DataLoader``, or changes
            batches.
    """
    kind = type(loader)
    if kind is not DataLoader and kind.__init__ is not DataLoader.__init__ and kind.__name__ != "StatefulDataLoader":
        raise CannotOffloadError(f"a {kind.__name__} may take other arguments than a DataLoader")
    is_own = any(getattr(kind, name) is not getattr(DataLoader, name) for name in ("__iter__", "_get_iterator"))
    if is_own and kind.__name__ != "StatefulDataLoader":
        raise CannotOffloadError(
            f"a {kind.__name__} has an iterator of its own, which would meet images before their transform: give "
            "fl.offload a DataLoader, and do the rest with its batches"
        )
    settings: dict[str, Any] = {name: getattr(loader, name) for name in SETTINGS if hasattr(loader, name)}
    if type(loader.batch_sampler) is BatchSampler and loader.batch_size is not None:
        settings |= {"batch_size": loader.batch_size, "sampler": loader.sampler, "drop_last": loader.drop_last}
    else:
        settings |= {"batch_sampler": loader.batch_sampler}
    return kind(dataset, collate_fn=collate, **settings)
