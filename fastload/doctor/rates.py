"""How fast a loader is alone: with other numbers of workers, and with its work moved to the device."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from fastload.environment import cores
from fastload.offload.collation import OffloadCollate
from fastload.offload.error import CannotOffloadError
from fastload.offload.offload import INSTEAD, offload
from fastload.streams import STREAMLESS
from fastload.structure.tree import tree_flatten

__all__ = ["CopyRates", "Offloaded", "copy_rates", "numbers_of_workers", "offloaded", "rate_of", "with_workers"]

SECONDS = 3.0  # for each rate
BLOCK = 256 * 2**20  # bytes
COPIES = 8


@dataclass(frozen=True)
class Offloaded:
    """What ``fl.offload`` moves of a loader, and its rate alone; ``refused`` is the reason if it moves nothing."""

    plan: str = ""
    samples_per_second: float = 0.0
    refused: str = ""


@dataclass(frozen=True)
class CopyRates:
    """Of copies to the device, in 10**9 bytes a second."""

    pinned: float
    pageable: float


def numbers_of_workers(now: int) -> list[int]:
    """How many workers to try: none, one, half the cores, the cores, and what the loader has."""
    return sorted({0, 1, max(1, cores() // 2), cores(), now})


def with_workers(loader: DataLoader[Any], workers: int) -> DataLoader[Any]:
    """The same loader with so many workers, and its batches over and over: one of few batches has a rate, too.

    Those of an ``IterableDataset``, or of a data set that makes its batches itself, come once.
    """
    return DataLoader(
        loader.dataset,
        **_batching(loader),
        num_workers=workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context if workers else None,
    )


def rate_of(loader: Iterable[Any]) -> float:
    """Samples a second from the first batch on, of a loader that nobody trains on."""
    counted, begun = 0, 0.0
    batches = iter(loader)
    try:
        for number, batch in enumerate(batches):
            now = time.perf_counter()
            if number == 0:
                begun = now  # workers have started
            else:
                counted += samples_in(batch)
            if number and now - begun > SECONDS:
                break
        _finish()
        return counted / (time.perf_counter() - begun) if counted else 0.0
    finally:
        getattr(batches, "close", _nothing)()


def offloaded(loader: Any, measure: bool, on_error: str = "raise") -> Offloaded:
    """What ``fl.offload(loader, on_error=on_error)`` would do; with ``measure`` how fast that is."""
    if isinstance(getattr(loader, "collate_fn", None), OffloadCollate):
        return Offloaded(refused="what can move has moved already")
    plan = io.StringIO()
    try:
        with contextlib.redirect_stdout(plan):
            moved = offload(loader, on_error=on_error)
    except (CannotOffloadError, TypeError, ValueError) as error:
        return Offloaded(refused=reason(error))
    inner: Any = moved.loader
    with moved.rewrapped(with_workers(inner, inner.num_workers)) as repeated:
        return Offloaded(plan.getvalue().strip(), rate_of(repeated) if measure else 0.0)


def copy_rates(device: torch.device) -> CopyRates | None:
    """The rates of copies from pinned and from pageable memory; None where there is nothing to copy to."""
    if device.type in STREAMLESS:
        return None
    block = torch.empty(BLOCK, dtype=torch.uint8)
    there = torch.empty(BLOCK, dtype=torch.uint8, device=device)
    return CopyRates(_copied(block.pin_memory(), there), _copied(block, there))


def samples_in(batch: Any) -> int:
    """How many samples a batch has: the length of its first tensor."""
    sizes: Iterator[int] = (len(tensor) for tensor in tree_flatten(batch).tensors.values() if tensor.dim())
    return next(sizes, 1)


def reason(error: Exception) -> str:
    """The first line of an error, and the list that it announces, without what fl.offload says before and behind."""
    text = str(error).removeprefix("fl.offload does not know how to do this: ").partition(f".\n{INSTEAD}")[0]
    first = text.partition("\n")[0]
    return text if first.endswith(":") else first.rstrip(".")


def _batching(loader: DataLoader[Any]) -> dict[str, Any]:
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_sampler is None:
        return {"batch_size": None, "sampler": loader.sampler}
    return {"batch_sampler": cycle(loader.batch_sampler)}


def _copied(block: torch.Tensor, there: torch.Tensor) -> float:
    there.copy_(block)
    _finish()
    begin = time.perf_counter()
    for _ in range(COPIES):
        there.copy_(block, non_blocking=True)
    _finish()
    return COPIES * BLOCK / (time.perf_counter() - begin) / 1e9


def _finish() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _nothing() -> None: ...
