"""How long a queued call takes: on the host, and on the device with no gap between calls."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from fastload.bench.harness.window import synchronize
from fastload.streams import Timestamp

__all__ = ["Call", "calls_in_time", "device_seconds", "host_seconds"]

CYCLES_PER_SECOND = 2e9  # about the highest clock of a GPU
HELD_SECONDS = 0.2

Call = Callable[[int], object]  # takes the call's number, so that inputs can rotate


def calls_in_time(call: Call, most: int, device: torch.device) -> int:
    """Count the calls that the host can queue while the device is held busy: up to ``most``, at least one."""
    call(0)
    return max(1, min(most, int(HELD_SECONDS / 2 / host_seconds(call, 1, device))))


def host_seconds(call: Call, calls: int, device: torch.device) -> float:
    """Time how long the host takes to queue one call, as the mean of ``calls``."""
    call(0)
    synchronize(device)
    start = time.perf_counter()
    for number in range(calls):
        call(number)
    seconds = (time.perf_counter() - start) / calls
    synchronize(device)
    return seconds


def device_seconds(call: Call, calls: int, device: torch.device, host_seconds: float) -> float:
    """Time how long the device takes for one call, as the mean of ``calls`` that are all queued before the first runs.

    ``host_seconds`` is how long the host takes to queue one.
    """
    _hold_device(device, 2 * calls * host_seconds)
    start = Timestamp(device)
    for number in range(calls):
        call(number)
    return start.seconds_to(Timestamp(device)) / calls


def _hold_device(device: torch.device, seconds: float) -> None:
    """Keep the device busy for ``seconds``, so that the calls queued meanwhile run without a gap.

    It is held for ``HELD_SECONDS`` at most: more calls than can be queued in that time fill the device's queue.
    """
    if device.type == "cuda":
        cycles = int((min(seconds, HELD_SECONDS) + 1e-3) * CYCLES_PER_SECOND)
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # noqa: SLF001  (there is no public way)
