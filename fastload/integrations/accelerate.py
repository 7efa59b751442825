"""Accelerate: ``prepare`` shards a ``PrefetchLoader`` over the ranks, ``skip_first_batches`` skips within it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import accelerate

from fastload.loader import PrefetchLoader

if TYPE_CHECKING:
    import torch

__all__ = ["prepare", "skip_first_batches"]


def prepare(accelerator: accelerate.Accelerator, *objects: Any, device_placement: list[bool] | None = None) -> Any:
    """``accelerator.prepare(*objects)``, where objects may be ``PrefetchLoader``s too.

    >>> import torch
    >>> accelerator = accelerate.Accelerator(cpu=True)
    >>> loader = PrefetchLoader(torch.utils.data.DataLoader(torch.zeros(8, 3), batch_size=4), device="cpu")
    >>> model, loader = prepare(accelerator, torch.nn.Linear(3, 1), loader)
    >>> [len(accelerator.gather_for_metrics(batch)) for batch in loader]
    [4, 4]

    The loader inside is prepared, and a new ``PrefetchLoader`` with the same settings comes around it. This is
    ``loader.rewrapped(accelerator.prepare(loader.loader))``. All that Accelerate does with a prepared loader holds:
    ``accumulate``, ``gather_for_metrics``, ``even_batches``. Pass the new loader to
    ``accelerator.register_for_checkpointing``, and ``save_state`` and ``load_state`` resume within an epoch.

    Raises:
        ValueError: the device of a ``PrefetchLoader`` is not the accelerator's; or its data set is an
            ``IterableDataset``, there are several ranks, and ``dispatch_batches`` is not False.
    """
    loaders = [each for each in objects if isinstance(each, PrefetchLoader)]
    for loader in loaders:
        _check_device(loader.device, accelerator.device)
    plain = [each.loader if isinstance(each, PrefetchLoader) else each for each in objects]
    prepared = accelerator.prepare(*plain, device_placement=device_placement)
    several = prepared if len(objects) > 1 else (prepared,)
    results = tuple(
        each.rewrapped(inside) if isinstance(each, PrefetchLoader) else inside
        for each, inside in zip(objects, several, strict=True)
    )
    return results if len(objects) > 1 else results[0]


def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
    """``accelerate.skip_first_batches``, for a ``PrefetchLoader`` too.

    >>> import torch
    >>> loader = PrefetchLoader(torch.utils.data.DataLoader(torch.arange(8), batch_size=4), device="cpu")
    >>> for batch in skip_first_batches(loader, 1):
    ...     print(batch)
    tensor([4, 5, 6, 7])

    It returns the ``PrefetchLoader`` itself, whose next pass begins ``num_batches`` later: samples, order and
    augmentations are those of a whole pass. Later passes are whole. Its length stays that of a whole pass.
    """
    if not isinstance(loader, PrefetchLoader):
        return accelerate.skip_first_batches(loader, num_batches)
    loader.skip(num_batches)
    return loader


def _check_device(ours: torch.device, theirs: torch.device) -> None:
    if ours.type != theirs.type or (None not in (ours.index, theirs.index) and ours.index != theirs.index):
        raise ValueError(
            f"the PrefetchLoader is made for {ours}, and the accelerator for {theirs}: make the Accelerator first, or "
            "pass device=accelerator.device to the PrefetchLoader"
        )
