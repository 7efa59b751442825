"""What it costs to bring a batch to the device: the host's time, and the time until it is there.

Both subjects work in a thread with a stream of its own, as a prefetcher does. The floor is one copy of as many bytes
from one pinned block.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fastload.bench.harness.check import WrongValuesError
from fastload.bench.harness.result import Row, ratio_to, row
from fastload.bench.harness.suite import Plan, Suite
from fastload.bench.harness.window import synchronize
from fastload.streams import SideStream, SyncStream, side_stream
from fastload.structure.tree import map_movable, tree_flatten, tree_unflatten
from fastload.transfer.transfer import Transfer

__all__ = ["SUITE"]

Send = Callable[[Any], Any]
SEED = 0
MICRO = 1e6


@dataclass(frozen=True)
class Size:
    """How large images are, and so many batches that none is in a cache when its turn comes again."""

    height: int
    width: int
    images: int  # of a classification batch
    side: int
    batches: int
    calls: int

    @classmethod
    def of(cls, device: torch.device) -> Size:
        if device.type == "cuda":
            return cls(height=480, width=640, images=256, side=224, batches=4, calls=40)
        return cls(height=24, width=32, images=8, side=32, batches=2, calls=4)


def _maskrcnn(size: Size, generator: torch.Generator) -> Any:
    """16 images and their targets as COCO has them: 112 tensors, one to 14 objects an image."""

    def bytes_(*shape: int, most: int = 256) -> torch.Tensor:
        return torch.randint(0, most, shape, dtype=torch.uint8, generator=generator)

    images, targets = [], []
    for number in range(16):
        height, width, objects = size.height - number, size.width - 2 * number, 1 + number * 7 % 14
        images.append(bytes_(3, height, width))
        targets.append(
            {
                "boxes": torch.rand(objects, 4, generator=generator),
                "labels": torch.randint(1, 91, (objects,), generator=generator),
                "masks": bytes_(objects, height, width, most=2),
                "area": torch.rand(objects, generator=generator),
                "iscrowd": torch.zeros(objects, dtype=torch.int64),
                "image_id": torch.tensor([number]),
            }
        )
    return images, targets


def _classification(size: Size, generator: torch.Generator) -> Any:
    shape = (size.images, 3, size.side, size.side)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return images, torch.randint(0, 1000, (size.images,), generator=generator)


def _dict_of_100(_: Size, generator: torch.Generator) -> Any:
    """100 small tensors of three dtypes, 4 bytes to 8 kB."""
    dtypes = (torch.float32, torch.int64, torch.bool)
    return {
        f"field_{number}": torch.rand(1 + number % 8, (number * 37) % 128, generator=generator).to(dtypes[number % 3])
        for number in range(100)
    }


CASES: dict[str, Callable[[Size, torch.Generator], Any]] = {
    "maskrcnn_b16": _maskrcnn,
    "classification_b256": _classification,
    "dict_of_100": _dict_of_100,
}
# As a loader yields them without pin_memory=True, and with it.
VARIANTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pageable": lambda tensor: tensor,
    "pinned": lambda tensor: tensor.pin_memory() if torch.cuda.is_available() else tensor,
}


def _per_tensor(side: SideStream | SyncStream) -> Send:
    """The loop of many training scripts; where device and host are one, it copies too."""
    return lambda batch: _sent(batch, side.device)


def _sent(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True, copy=True)
    if isinstance(batch, dict):
        return {key: _sent(value, device) for key, value in batch.items()}
    return type(batch)(_sent(value, device) for value in batch)


def _fastload(side: SideStream | SyncStream) -> Send:
    transfer = Transfer(side, pack=True)

    def send(batch: Any) -> Any:
        tree = tree_flatten(batch)
        return tree_unflatten(tree.replaced(transfer.move(tree.leaves)))

    return send


SUBJECTS = {"per_tensor": _per_tensor, "fastload": _fastload}


def measure(plan: Plan) -> list[Row]:
    side = side_stream(plan.device)
    with ThreadPoolExecutor(1, initializer=side.adopt_thread) as thread:
        return [each for variant in VARIANTS for each in thread.submit(_measure, plan, variant, side).result()]


@torch.no_grad()
def _measure(plan: Plan, variant: str, side: SideStream | SyncStream) -> list[Row]:
    size = Size.of(plan.device)
    generator = torch.Generator().manual_seed(SEED)
    batches = [
        map_movable(lambda tensor, _: VARIANTS[variant](tensor), CASES[plan.case](size, generator))
        for _ in range(size.batches)
    ]
    sends = {name: SUBJECTS[name](side) for name in SUBJECTS if name in plan.subjects}
    for name in plan.track(list(sends), "checking"):
        _check(name, sends[name], batches)
    bytes_to_move = sum(tensor.nbytes for tensor in tree_flatten(batches[0]).movables.values())
    one_copy = _one_copy(bytes_to_move, plan.device)
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    floor = []
    for name in plan.alternate(list(sends)):
        times[name].append(_times(sends[name], batches, size.calls, plan.device))
        if name == plan.subjects[0]:
            floor.append(_times(one_copy, batches, size.calls, plan.device)[1])
    gb_per_s = bytes_to_move / statistics.median(floor) / 1000
    return list(_rows(plan.case, variant, times, floor, gb_per_s))


def _rows(
    case: str, variant: str, times: dict[str, list[tuple[float, float]]], floor: list[float], copy_gb_per_s: float
) -> Iterator[Row]:
    baseline = [host for host, _ in times[SUITE.baseline]]
    for name, measured in times.items():
        hosts, walls = [host for host, _ in measured], [wall for _, wall in measured]
        ratios = [own / other for own, other in zip(hosts, baseline, strict=True)]
        yield row(case, name, "host_us", hosts, variant=variant, **ratio_to(SUITE.baseline, ratios))
        ratios = [own / least for own, least in zip(walls, floor, strict=True)]
        to_floor = ratio_to("floor", ratios)
        yield row(case, name, "wall_us", walls, variant=variant, copy_gb_per_s=copy_gb_per_s, **to_floor)


def _check(name: str, send: Send, batches: list[Any]) -> None:
    """Compare after all have been sent, so that one which a later one overwrote is found."""
    sent = [send(batch) for batch in batches]
    for moved, batch in zip(sent, batches, strict=True):
        for new, old in zip(tree_flatten(moved).movables.values(), tree_flatten(batch).movables.values(), strict=True):
            if (new.dtype, new.stride()) != (old.dtype, old.stride()) or not torch.equal(new.cpu(), old):
                raise WrongValuesError(f"{name} is wrong: a tensor {tuple(old.shape)} arrived with other values")


def _one_copy(size: int, device: torch.device) -> Send:
    source = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda").random_()
    target = torch.empty(size, dtype=torch.uint8, device=device)
    return lambda _: target.copy_(source, non_blocking=True)


def _times(send: Send, batches: list[Any], calls: int, device: torch.device) -> tuple[float, float]:
    """Microseconds until the host goes on, and until the batch is there, as the median over the calls."""
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
            host.append(MICRO * (queued - start))
            wall.append(MICRO * (there - start))
    return statistics.median(host), statistics.median(wall)


def settings(device: torch.device) -> dict[str, object]:
    return {
        **asdict(Size.of(device)),
        "variants": "pageable, as a loader yields them, and pinned, as with pin_memory=True",
        "floor": "one copy of as many bytes from one pinned block, measured in the same run",
        "host_us": "until the call returns, the device idle before",
        "wall_us": "until the device has all",
    }


SUITE = Suite(
    name="transfer",
    cases=tuple(CASES),
    subjects=tuple(SUBJECTS),
    baseline="per_tensor",
    packages={},
    runs=25,
    settings=settings,
    measure=measure,
)
