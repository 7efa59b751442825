"""``SampleTimes``: what one sample costs a worker: reading its file, decoding, its transform, and collating."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from fastload.offload.dataset import transform_of
from fastload.offload.error import CannotOffloadError

__all__ = ["SampleTimes", "time_samples"]

SAMPLES = 64
SECONDS = 4.0


@dataclass(frozen=True)
class SampleTimes:
    """Seconds for one sample, in this process on one core; None where it could not be told apart.

    ``read``: its file from storage; ``decode``: the rest of ``__getitem__`` before the transform; ``transform``; and
    ``collate``: its share of the batch. ``whole`` is ``__getitem__`` and collating.
    """

    samples: int
    whole: float
    read: float | None = None
    decode: float | None = None
    transform: float | None = None
    collate: float | None = None


class TimedTransform:
    """A transform that sums up its time."""

    def __init__(self, transform: Callable[..., Any]) -> None:
        self.transform = transform
        self.seconds = 0.0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        result = self.transform(*arguments, **named)
        self.seconds += time.perf_counter() - begin
        return result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.transform, name)


def time_samples(loader: DataLoader[Any]) -> SampleTimes | None:
    """Load a few samples in the sampler's order; None if there are none, or the data set makes its batches itself."""
    if loader.batch_size is None and loader.batch_sampler is None:
        return None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker
    try:
        return _timed(loader)
    finally:
        torch.set_num_threads(threads)


def _timed(loader: DataLoader[Any]) -> SampleTimes | None:
    dataset, transform = _with_timed_transform(loader.dataset)
    reads: list[float] = []
    loaded: Iterator[Any]
    if isinstance(dataset, IterableDataset):
        loaded = islice(iter(dataset), loader.batch_size)
    else:
        indices = next(iter(loader.batch_sampler or ()), [])[:SAMPLES]
        reads += _reads(loader.dataset, indices)
        loaded = map(dataset.__getitem__, indices)
    samples, seconds = [], []
    end = time.perf_counter() + SECONDS
    begin = time.perf_counter()
    for sample in loaded:
        samples.append(sample)
        seconds.append(time.perf_counter() - begin)
        if time.perf_counter() > end:
            break
        begin = time.perf_counter()
    if not samples:
        return None
    # The first call may load libraries, and a call may take its samples' entries out of them.
    loader.collate_fn([copy(sample) if isinstance(sample, dict | list) else sample for sample in samples])
    begin = time.perf_counter()
    loader.collate_fn(samples)
    collate = (time.perf_counter() - begin) / len(samples)
    item = fmean(seconds)
    read = fmean(reads) if reads else None
    applied = transform.seconds / len(samples) if transform is not None else None
    # The file is read again from the page cache within `item`, which takes little.
    decode = max(0.0, item - applied) if applied is not None else None
    return SampleTimes(len(samples), (read or 0.0) + item + collate, read, decode, applied, collate)


def _reads(dataset: Any, indices: list[int]) -> Iterator[float]:
    """Seconds to read each sample's file, before anything else has read it."""
    kept = (getattr(dataset, name, None) for name in ("samples", "imgs"))
    files: Sequence[Any] = next((each for each in kept if isinstance(each, list | tuple) and each), ())
    for index in islice(indices, len(files)):
        path = files[index][0] if isinstance(files[index], tuple | list) else files[index]
        if isinstance(path, str | Path) and Path(path).is_file():
            begin = time.perf_counter()
            Path(path).read_bytes()
            yield time.perf_counter() - begin


def _with_timed_transform(dataset: Any) -> tuple[Any, TimedTransform | None]:
    try:
        place = transform_of(dataset)
        timed = TimedTransform(place.transform)
        return place.with_other(timed), timed
    except (CannotOffloadError, TypeError, ValueError):
        return dataset, None
