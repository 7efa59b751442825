"""``watch``: measure a loop over any loader, without prefetching."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from fastload.arguments import resolved_device
from fastload.report.measured import MeasuredLoader
from fastload.report.setup import Setup
from fastload.stats.clock import LoaderClock, PassClock
from fastload.stats.contents import note_contents
from fastload.streams import side_stream
from fastload.structure.tree import tree_flatten

__all__ = ["WatchedLoader", "watch"]


def watch(loader: Iterable[Any], device: torch.device | str | int | None = None) -> WatchedLoader:
    """Measure a loop over any loader: how long training waits for its batches, and why.

    >>> loader = watch([1, 2, 3], device="cpu")
    >>> list(loader), loader.stats.total.batches
    ([1, 2, 3], 2)

    The batches are those of ``loader``, unchanged. ``stats`` and ``report()`` are as those of ``PrefetchLoader``; the
    wait is measured on the clock of ``device``, which is the current accelerator if there is one, else the CPU. What a
    loop does with a batch, copying it to the device included, counts as training.

    Raises:
        TypeError: ``loader`` is not iterable.
        ValueError: the machine has no such device.
    """
    if not isinstance(loader, Iterable):
        raise TypeError(f"loader must be an iterable of batches, such as a DataLoader; got {type(loader).__name__}")
    return WatchedLoader(loader, resolved_device(device))


class WatchedLoader(MeasuredLoader):
    """Any loader with a clock; :func:`watch` makes one. Other attributes are the loader's."""

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self.loader = loader
        self.device = device
        self.clock = LoaderClock()

    def __reduce__(self) -> tuple[Any, ...]:
        return WatchedLoader, (self.loader, self.device)  # a copy has measured nothing

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        return WatchedPass(batches, self.clock.begin_pass(batches, side := side_stream(self.device)), side)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.loader, name)

    @property
    def _setup(self) -> Setup:
        return Setup.of(self.loader, self.device.type, None, self.clock.images)


class WatchedPass(Iterator[Any]):
    """One pass over a loader, measured in the consumer's thread."""

    def __init__(self, batches: Iterator[Any], clock: PassClock, side: Any) -> None:
        self._batches = batches
        self._clock = clock
        self._side = side

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)  # frameworks look at a DataLoader's iterator

    def __next__(self) -> Any:
        consumer = self._side.consumer()
        self._clock.keep_time()
        times, asked = self._clock.pulling(), self._clock.asked(consumer, ready=0)
        try:
            with times.stage("load"):
                batch = next(self._batches)
        except StopIteration:
            self._clock.end()
            raise
        times.overtaken = self._clock.workers.overtaken()
        note_contents(tree_flatten(batch), times)
        self._clock.given(times, asked, consumer)
        return batch
