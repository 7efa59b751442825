"""How long a batch takes to become normalised floats, next to the time its bytes need to move at all."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from fastload.bench.check import check_normalized
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.normalizers import ARITHMETIC, NORMALIZERS, OUT, Normalizer
from fastload.bench.result import Row, ratio_to, row
from fastload.bench.suite import Plan, Suite
from fastload.bench.window import synchronize
from fastload.streams import Mark

__all__ = ["SUITE"]

CYCLES_PER_SECOND = 2e9  # about the highest clock of a GPU
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

    @property
    def pixels(self) -> int:
        return self.batch * 3 * self.side**2


@dataclass(frozen=True)
class Inputs:
    """One of the copies: random images, since zeros can run faster, and which of them to mirror."""

    images: torch.Tensor
    flip: torch.Tensor | None

    @classmethod
    def random(cls, size: Size, case: str, device: torch.device) -> Inputs:
        shape = (size.batch, 3, size.side, size.side)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        flip = torch.randint(2, (size.batch,), device=device).bool() if case == "flip_normalize" else None
        return cls(images, flip)


CASES = {
    "normalize": tuple(NORMALIZERS),
    "flip_normalize": tuple(name for name in NORMALIZERS if name != "timm"),  # timm flips in its workers
}


def measure(plan: Plan) -> list[Row]:
    size = Size.of(plan.device)
    torch.manual_seed(0)
    copies = [Inputs.random(size, plan.case, plan.device) for _ in range(size.copies)]
    names = [name for name in CASES[plan.case] if name in plan.subjects]
    built = {
        variant: {name: NORMALIZERS[name](plan.device, memory_format) for name in names}
        for variant, memory_format in VARIANTS.items()
    }
    for name in plan.track(names, "checking"):
        for variant, memory_format in VARIANTS.items():
            _check(name, built[variant][name], copies[-1], memory_format)
    return [measured for variant in VARIANTS for measured in _measure(plan, variant, built[variant], copies)]


def _check(name: str, normalizer: Normalizer, inputs: Inputs, memory_format: torch.memory_format) -> None:
    check_normalized(
        name,
        normalizer(inputs.images, inputs.flip),
        inputs.images,
        inputs.flip,
        dtype=OUT,
        arithmetic=ARITHMETIC.get(name, torch.float32),
        memory_format=memory_format,
    )


def _measure(plan: Plan, variant: str, built: dict[str, Normalizer], copies: list[Inputs]) -> list[Row]:
    size = Size.of(plan.device)
    calls = {name: _rotating(normalizer, copies) for name, normalizer in built.items()}
    calls["floor"] = _device_copy(size, plan.device)
    device_us: dict[str, list[float]] = defaultdict(list)
    host_us: dict[str, list[float]] = defaultdict(list)
    for name in plan.alternate(["floor", *built]):
        host_seconds = _host_seconds(calls[name], size.calls, plan.device)
        host_us[name].append(1e6 * host_seconds)
        device_us[name].append(1e6 * _device_seconds(calls[name], size.calls, plan.device, host_seconds))
    copy_us = device_us["floor"]
    floor_us = [us * _bytes_to_move(size, plan.case) / (2 * size.copy_bytes) for us in copy_us]
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


def _bytes_to_move(size: Size, case: str) -> int:
    """Count what any implementation must read and write: a byte a value in, two out, and a byte a choice."""
    return size.pixels * (1 + OUT.itemsize) + (size.batch if case == "flip_normalize" else 0)


def _device_copy(size: Size, device: torch.device) -> Callable[[int], object]:
    source = torch.randint(0, 256, (size.copy_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda _: target.copy_(source)


def _rotating(normalizer: Normalizer, copies: list[Inputs]) -> Callable[[int], object]:
    """Work on the copies by turns; a result is kept until its copy's next turn, so results rotate too."""
    results: list[torch.Tensor | None] = [None] * len(copies)

    def call(number: int) -> None:
        turn = number % len(copies)
        results[turn] = normalizer(copies[turn].images, copies[turn].flip)

    return call


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
    start = Mark(device)
    for number in range(calls):
        call(number)
    return start.seconds_to(Mark(device)) / calls


def _hold_device(device: torch.device, seconds: float) -> None:
    """Keep the device busy for at least ``seconds``, so that what is queued meanwhile runs without a gap."""
    if device.type == "cuda":
        cycles = int((seconds + 1e-3) * CYCLES_PER_SECOND)
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # noqa: SLF001  (there is no public way)


def settings(device: torch.device) -> dict[str, object]:
    return {
        **asdict(Size.of(device)),
        "in": "uint8 NCHW",
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
