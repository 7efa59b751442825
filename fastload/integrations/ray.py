"""Ray Train: ``prepare_data_loader`` shards a ``PrefetchLoader`` over the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import ray.train.torch

from fastload.loader import PrefetchLoader

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["prepare_data_loader"]


def prepare_data_loader(data_loader: PrefetchLoader, add_dist_sampler: bool = True) -> PrefetchLoader:
    """``ray.train.torch.prepare_data_loader`` for a ``PrefetchLoader``.

    In the function that each worker of a ``TorchTrainer`` runs::

        loader = prepare_data_loader(fl.PrefetchLoader(DataLoader(data, 64, shuffle=True), transform=transform))
        for epoch in range(10):
            loader.set_epoch(epoch)  # Ray's samplers repeat their order without it
            for images, labels in step.epoch(loader):
                ...

    The ``DataLoader`` inside gets its ``DistributedSampler`` from Ray, and a new ``PrefetchLoader`` with the same
    settings comes around it, which copies batches to the worker's device. Ray makes a new ``DataLoader`` and leaves out
    some settings of the old, such as ``persistent_workers``.

    Raises:
        TypeError: ``data_loader`` is no ``PrefetchLoader``.
    """
    if not isinstance(data_loader, PrefetchLoader):
        raise TypeError(
            f"data_loader must be a PrefetchLoader; got {type(data_loader).__name__}: pass a plain DataLoader to "
            "ray.train.torch.prepare_data_loader"
        )
    plain = cast("DataLoader[Any]", data_loader.loader)
    inside = ray.train.torch.prepare_data_loader(plain, add_dist_sampler, move_to_device=False)
    return data_loader.rewrapped(inside)
