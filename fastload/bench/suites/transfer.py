"""What it costs to bring a batch to the device: the host's time, and the time until the batch is there.

Both subjects work in a thread with a stream of its own, as a prefetcher does. The floor is one copy of as many bytes
from one pinned block.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import torch

from fastload.bench.harness.check import WrongValuesError
from fastload.bench.harness.plan import Plan
from fastload.bench.harness.row import Row
from fastload.bench.harness.suite import Sizes, Suite
from fastload.bench.harness.turns import Figure, Figures, by_turns
from fastload.bench.harness.window import synchronize
from fastload.bench.subjects.host_batches import HOST_BATCHES, TransferSize
from fastload.bench.subjects.transfers import TRANSFERS, Send, one_copy
from fastload.streams import SideStream, SyncStream, side_stream
from fastload.structure.tree import map_movable, tree_flatten

__all__ = ["SUITE"]

SEED = 0
MICRO = 1e6
FLOOR = "floor"
SIZES = Sizes(
    gpu=TransferSize(height=480, width=640, images=256, side=224, batches=4, calls=40),
    cpu=TransferSize(height=24, width=40, images=4, side=16, batches=2, calls=2),
)
# As a loader yields batches without pin_memory=True, and with it
VARIANTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pageable": lambda tensor: tensor,
    "pinned": lambda tensor: tensor.pin_memory() if torch.cuda.is_available() else tensor,
}


def measure(plan: Plan[TransferSize]) -> list[Row]:
    side = side_stream(plan.device)
    with ThreadPoolExecutor(1, initializer=side.adopt_thread) as thread:
        return [row for variant in VARIANTS for row in thread.submit(_measure, plan, variant, side).result()]


@torch.no_grad()
def _measure(plan: Plan[TransferSize], variant: str, side: SideStream | SyncStream) -> list[Row]:
    size, device = plan.size, plan.device
    generator = torch.Generator().manual_seed(SEED)
    batches = [
        map_movable(lambda tensor, _: VARIANTS[variant](tensor), HOST_BATCHES[plan.case](size, generator))
        for _ in range(size.batches)
    ]
    sends = {name: TRANSFERS[name](side) for name in TRANSFERS if name in plan.subjects}
    for name in plan.track(list(sends), "checking"):
        _check(name, sends[name], batches)
    bytes_to_move = sum(tensor.nbytes for tensor in tree_flatten(batches[0]).movables.values())
    sends[FLOOR] = one_copy(bytes_to_move, device)

    def times(name: str) -> Figures:
        host, wall = _seconds(sends[name], batches, size.calls, device)
        beside = {"copy_gb_per_s": bytes_to_move / wall / 1e9} if name == FLOOR else {}
        return {"host_us": Figure(MICRO * host), "wall_us": Figure(MICRO * wall, beside)}

    ratios = {"host_us": SUITE.baseline, "wall_us": FLOOR}
    rows = by_turns(plan, list(sends), times, ratios=ratios, variant=variant)
    return _without_floor(rows)


def _without_floor(rows: Sequence[Row]) -> list[Row]:
    """Return the subjects' rows, and with their ``wall_us`` the rate of the floor's copy."""
    (rate,) = (row["copy_gb_per_s"] for row in rows if "copy_gb_per_s" in row)
    return [
        row | ({"copy_gb_per_s": rate} if row["metric"] == "wall_us" else {}) for row in rows if row["subject"] != FLOOR
    ]


def _check(name: str, send: Send, batches: Sequence[Any]) -> None:
    """Compare bit for bit after all batches have been sent, so a batch that a later one overwrote is found."""
    sent = [send(batch) for batch in batches]
    for moved, batch in zip(sent, batches, strict=True):
        for new, old in zip(tree_flatten(moved).movables.values(), tree_flatten(batch).movables.values(), strict=True):
            if (new.dtype, new.stride()) != (old.dtype, old.stride()) or not torch.equal(new.cpu(), old):
                raise WrongValuesError(f"{name} is wrong: a tensor {tuple(old.shape)} arrived with other values")


def _seconds(send: Send, batches: Sequence[Any], calls: int, device: torch.device) -> tuple[float, float]:
    """Return seconds until the call returns, and until the batch is on the device: the medians over the calls."""
    host, wall = [], []
    for number in range(-len(batches), calls):
        synchronize(device)
        start = time.perf_counter()
        sent = send(batches[number % len(batches)])
        queued = time.perf_counter()
        synchronize(device)
        there = time.perf_counter()
        del sent
        if number >= 0:
            host.append(queued - start)
            wall.append(there - start)
    return statistics.median(host), statistics.median(wall)


def settings(device: torch.device) -> dict[str, object]:
    return {
        **asdict(SIZES.on(device)),
        "variants": "pageable, as a loader yields them, and pinned, as with pin_memory=True",
        "floor": "one copy of as many bytes from one pinned block, measured in the same run",
        "host_us": "until the call returns, the device idle before",
        "wall_us": "until the device has all",
    }


SUITE = Suite(
    name="transfer",
    cases=dict.fromkeys(HOST_BATCHES, SIZES),
    subjects=tuple(TRANSFERS),
    baseline="per_tensor",
    packages={},
    runs=25,
    settings=settings,
    measure=measure,
)
