"""How long a batch takes to become a model's input, next to the time that its bytes need to move at all."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from fastload.bench.harness.result import Row, ratio_to, row
from fastload.bench.harness.suite import Plan, Suite
from fastload.bench.harness.window import synchronize
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.detection import DETECTION_RESIZE
from fastload.bench.subjects.normalizers import FLIP_NORMALIZE, NORMALIZE, NORMALIZERS, OUT
from fastload.bench.subjects.recipes import DEIT_RECIPE, RRC_FLIP_NORMALIZE
from fastload.streams import Timestamp

__all__ = ["SUITE"]

CYCLES_PER_SECOND = 2e9  # about the highest clock of a GPU
HELD_SECONDS = 0.2
Run = Callable[[Any], Any]  # an input of the case to what it makes of it: a batch, or images of different sizes
VARIANTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class Size:
    """A batch, and so many copies of it that none is still in a cache when its turn comes again."""

    batch: int
    side: int
    copies: int
    calls: int
    copy_bytes: int

    @classmethod
    def of(cls, device: torch.device) -> Size:
        if device.type == "cuda":
            return cls(batch=256, side=224, copies=4, calls=20, copy_bytes=2**30)
        return cls(batch=8, side=64, copies=4, calls=4, copy_bytes=2**24)


class Case(Protocol):
    """What is computed, who can, and how it is checked; an input is whatever the case's subjects take."""

    @property
    def subjects(self) -> Sequence[str]:
        """Those who can do it."""

    def inputs(self, batch: int, side: int, device: torch.device, number: int) -> Any:
        """One of the copies."""

    def build(self, name: str, side: int, device: torch.device, memory_format: torch.memory_format) -> Run:
        """How a subject does it."""

    def check(self, name: str, run: Run, inputs: Any, memory_format: torch.memory_format) -> None:
        """Raise ``WrongValuesError`` if a subject's values are wrong."""

    def bytes_to_move(self, inputs: Any) -> int:
        """Count what any implementation must read and write."""


CASES: dict[str, Case] = {
    "normalize": NORMALIZE,
    "flip_normalize": FLIP_NORMALIZE,
    "rrc_flip_normalize": RRC_FLIP_NORMALIZE,
    "deit_recipe": DEIT_RECIPE,
    "detection_resize": DETECTION_RESIZE,
}


def measure(plan: Plan) -> list[Row]:
    size = Size.of(plan.device)
    case = CASES[plan.case]
    copies = [case.inputs(size.batch, size.side, plan.device, number) for number in range(size.copies)]
    names = [name for name in case.subjects if name in plan.subjects]
    built = {
        variant: {name: case.build(name, size.side, plan.device, memory_format) for name in names}
        for variant, memory_format in VARIANTS.items()
    }
    for name in plan.track(names, "checking"):
        for variant, memory_format in VARIANTS.items():
            case.check(name, built[variant][name], copies[-1], memory_format)
    bytes_to_move = statistics.fmean(case.bytes_to_move(inputs) for inputs in copies)
    return [row for variant in VARIANTS for row in _measure(plan, variant, built[variant], copies, bytes_to_move)]


def _measure(plan: Plan, variant: str, built: dict[str, Run], copies: list[Any], bytes_to_move: float) -> list[Row]:
    size = Size.of(plan.device)
    calls = {name: _rotating(run, copies) for name, run in built.items()}
    calls["floor"] = _device_copy(size, plan.device)
    counts = {name: _calls_in_time(call, size.calls, plan.device) for name, call in calls.items()}
    device_us: dict[str, list[float]] = defaultdict(list)
    host_us: dict[str, list[float]] = defaultdict(list)
    for name in plan.alternate(["floor", *built]):
        host_seconds = _host_seconds(calls[name], counts[name], plan.device)
        host_us[name].append(1e6 * host_seconds)
        device_us[name].append(1e6 * _device_seconds(calls[name], counts[name], plan.device, host_seconds))
    copy_us = device_us["floor"]
    floor_us = [us * bytes_to_move / (2 * size.copy_bytes) for us in copy_us]
    gb_per_s = 2 * size.copy_bytes / statistics.median(copy_us) / 1000
    floor = row(plan.case, "floor", "us", floor_us, variant=variant, ratio_to_floor=1.0, copy_gb_per_s=gb_per_s)
    return [floor] + [
        row(
            plan.case,
            name,
            "us",
            device_us[name],
            variant=variant,
            host_us=statistics.median(host_us[name]),
            **ratio_to("floor", [us / least for us, least in zip(device_us[name], floor_us, strict=True)]),
        )
        for name in built
    ]


def _device_copy(size: Size, device: torch.device) -> Callable[[int], object]:
    source = torch.randint(0, 256, (size.copy_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda _: target.copy_(source)


def _rotating(run: Run, copies: list[Any]) -> Callable[[int], object]:
    """Work on the copies by turns; a result is kept until its copy's next turn, so results rotate too."""
    results: list[object] = [None] * len(copies)

    def call(number: int) -> None:
        turn = number % len(copies)
        results[turn] = run(copies[turn])

    return call


def _calls_in_time(call: Callable[[int], object], most: int, device: torch.device) -> int:
    """Count the calls that the host can queue while the device is held, up to ``most``, and at least one."""
    call(0)
    return max(1, min(most, int(HELD_SECONDS / 2 / _host_seconds(call, 1, device))))


def _host_seconds(call: Callable[[int], object], calls: int, device: torch.device) -> float:
    """Time how long the host takes to queue one call."""
    call(0)
    synchronize(device)
    start = time.perf_counter()
    for number in range(calls):
        call(number)
    seconds = (time.perf_counter() - start) / calls
    synchronize(device)
    return seconds


def _device_seconds(call: Callable[[int], object], calls: int, device: torch.device, host_seconds: float) -> float:
    """Time how long the device takes for one call when the host has queued all of them in time."""
    _hold_device(device, 2 * calls * host_seconds)
    start = Timestamp(device)
    for number in range(calls):
        call(number)
    return start.seconds_to(Timestamp(device)) / calls


def _hold_device(device: torch.device, seconds: float) -> None:
    """Keep the device busy for ``seconds``, so that what is queued meanwhile runs without a gap.

    Beyond ``HELD_SECONDS`` it would be for nothing: a call of so many launches fills the device's queue.
    """
    if device.type == "cuda":
        cycles = int((min(seconds, HELD_SECONDS) + 1e-3) * CYCLES_PER_SECOND)
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # noqa: SLF001  (there is no public way)


def settings(device: torch.device) -> dict[str, object]:
    return {
        **asdict(Size.of(device)),
        "in": "uint8 NCHW; from rrc_flip_normalize on, planes of images near 500x375 (detection: 600x450) at full size",
        "out": str(OUT),
        "mean": MEAN,
        "std": STD,
        "floor": "bytes to read and write, at the rate (read + write) of a device copy of copy_bytes",
    }


SUITE = Suite(
    name="kernels",
    cases=tuple(CASES),
    subjects=("floor", *NORMALIZERS),
    baseline="floor",
    packages={"timm": "timm", "kornia": "kornia"},
    runs=25,
    settings=settings,
    measure=measure,
)
