"""``lanes_of``: what each thread and each stream did when, from the times of some batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from fastload.stats.batch_times import BatchTimes, Span

__all__ = ["Bar", "Lane", "lanes_of"]

HOST_LANES = {
    "load": ("loader", "loading"),
    "pin": ("pinning thread", "pinning"),
    "decode": ("decoding thread", "decoding"),
    "prepare": ("prefetch thread", "preparing"),
}
DEVICE_LANES = {"decode": "decoding", "copy": "copying", "transform": "transforming"}


class Bar(NamedTuple):
    """What was done for a batch from ``begin`` to ``end``, in seconds on the host's clock."""

    begin: float
    end: float
    what: str
    batch: int


@dataclass(frozen=True)
class Lane:
    """What one thread or stream did, in order."""

    name: str
    bars: Sequence[Bar]


def lanes_of(batches: Sequence[BatchTimes], *, has_device: bool) -> list[Lane]:
    """The lanes, in the order in which a batch goes through them; at last what trains.

    >>> times = BatchTimes(0, None)
    >>> times.host["load"] = Span(1.0, 2.0)
    >>> lanes_of([times], has_device=False)
    [Lane(name='loader', bars=[Bar(begin=1.0, end=2.0, what='loading', batch=0)])]
    """
    lanes = [
        Lane(lane, [bar(batch.host[stage], what, batch) for batch in batches if stage in batch.host])
        for stage, (lane, what) in HOST_LANES.items()
    ]
    if has_device:
        side = [
            bar(batch.device[stage], what, batch)
            for batch in batches
            for stage, what in DEVICE_LANES.items()
            if stage in batch.device
        ]
        lanes.append(Lane("GPU, fastload", sorted(side)))
    lanes.append(Lane("GPU, training" if has_device else "training", list(_training(batches))))
    return [lane for lane in lanes if lane.bars]


def bar(span: Span, what: str, batch: BatchTimes) -> Bar:
    return Bar(span.begin, span.end, what, batch.number)


def _training(batches: Sequence[BatchTimes]) -> Iterator[Bar]:
    """Waiting for a batch, and training on it until the next is asked for."""
    stalls = [(batch, batch.device["stall"]) for batch in batches if "stall" in batch.device]
    for (batch, stall), (_, following) in pairwise(stalls):
        yield bar(stall, "waiting for input", batch)
        if following.begin > stall.end:
            yield Bar(stall.end, following.begin, "training", batch.number)
