"""How long a batch takes to become a model's input, next to the time that moving its bytes takes at least."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fastload.bench.harness.calls import Call, calls_in_time, device_seconds, host_seconds
from fastload.bench.harness.plan import Plan
from fastload.bench.harness.row import Row
from fastload.bench.harness.suite import Sizes, Suite
from fastload.bench.harness.turns import Figure, Figures, by_turns
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.detection_case import DETECTION_RESIZE
from fastload.bench.subjects.kernel_case import OUT, KernelCase, Run
from fastload.bench.subjects.normalize_case import FLIP_NORMALIZE, NORMALIZE
from fastload.bench.subjects.normalizers import NORMALIZERS
from fastload.bench.subjects.recipe_case import DEIT_RECIPE, RRC_FLIP_NORMALIZE

__all__ = ["SUITE"]

MICRO = 1e6
VARIANTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
CASES: dict[str, KernelCase] = {
    "normalize": NORMALIZE,
    "flip_normalize": FLIP_NORMALIZE,
    "rrc_flip_normalize": RRC_FLIP_NORMALIZE,
    "deit_recipe": DEIT_RECIPE,
    "detection_resize": DETECTION_RESIZE,
}


@dataclass(frozen=True)
class KernelsSize:
    """A batch, and so many copies of it that none is still in a cache when it is used again."""

    batch: int
    side: int
    copies: int
    calls: int
    copy_bytes: int


SIZES = Sizes(
    gpu=KernelsSize(batch=256, side=224, copies=4, calls=20, copy_bytes=2**30),
    cpu=KernelsSize(batch=4, side=32, copies=2, calls=1, copy_bytes=2**16),
)


def measure(plan: Plan[KernelsSize]) -> list[Row]:
    case, size, device = CASES[plan.case], plan.size, plan.device
    copies = [case.inputs(size.batch, size.side, device, number) for number in range(size.copies)]
    names = [name for name in case.subjects if name in plan.subjects]
    built = {
        variant: {name: case.build(name, size.side, device, memory_format) for name in names}
        for variant, memory_format in VARIANTS.items()
    }
    for name in plan.track(names, "checking"):
        for variant, memory_format in VARIANTS.items():
            case.check(name, built[variant][name], copies[-1], memory_format)
    bytes_to_move = statistics.fmean(case.bytes_to_move(inputs) for inputs in copies)
    return [row for variant in VARIANTS for row in _measure(plan, variant, built[variant], copies, bytes_to_move)]


def _measure(
    plan: Plan[KernelsSize], variant: str, built: dict[str, Run], copies: Sequence[Any], bytes_to_move: float
) -> list[Row]:
    size, device = plan.size, plan.device
    calls = {"floor": _device_copy(size.copy_bytes, device)} | {
        name: _rotating(run, copies) for name, run in built.items()
    }
    counts = {name: calls_in_time(call, size.calls, device) for name, call in calls.items()}

    def times(name: str) -> Figures:
        on_host = host_seconds(calls[name], counts[name], device)
        on_device = device_seconds(calls[name], counts[name], device, on_host)
        if name != "floor":
            return {"us": Figure(MICRO * on_device, {"host_us": MICRO * on_host})}
        bytes_per_s = 2 * size.copy_bytes / on_device  # each byte is read and written
        return {"us": Figure(MICRO * bytes_to_move / bytes_per_s, {"copy_gb_per_s": bytes_per_s / 1e9})}

    return by_turns(plan, list(calls), times, ratios={"us": "floor"}, variant=variant)


def _device_copy(size: int, device: torch.device) -> Call:
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda _: target.copy_(source)


def _rotating(run: Run, copies: Sequence[Any]) -> Call:
    """Use the copies in turn. A result is kept until its copy's next turn, so the results' memory rotates too."""
    results: list[object] = [None] * len(copies)

    def call(number: int) -> None:
        turn = number % len(copies)
        results[turn] = run(copies[turn])

    return call


def settings(device: torch.device) -> dict[str, object]:
    return {
        **asdict(SIZES.on(device)),
        "in": "uint8 NCHW; from rrc_flip_normalize on, planes of images near 500x375 (detection: 600x450) at full size",
        "out": str(OUT),
        "mean": MEAN,
        "std": STD,
        "floor": "bytes to read and write, at the rate (read + write) of a device copy of copy_bytes",
    }


SUITE = Suite(
    name="kernels",
    cases=dict.fromkeys(CASES, SIZES),
    subjects=("floor", *NORMALIZERS, "kornia_compiled"),
    baseline="floor",
    packages={"timm": "timm", **dict.fromkeys(("kornia", "kornia_compiled"), "kornia")},
    runs=25,
    settings=settings,
    measure=measure,
)
