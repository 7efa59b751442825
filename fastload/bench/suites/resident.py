"""How near training comes to its speed with data on the GPU, when decoded images wait in host memory.

Every subject gets the same loader and feeds the same compiled training step. Its speed is divided by that of
the ``limit``, the step on one batch kept on the device, measured just before and just after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import islice

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset

from fastload.bench.harness.check import check_batches
from fastload.bench.harness.limit import next_to_limit
from fastload.bench.harness.result import Row
from fastload.bench.harness.suite import Plan, Suite, worker_count
from fastload.bench.harness.window import Batches, Window, timed_window
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects import training
from fastload.bench.subjects.loaders import ARITHMETIC, DELIVER, DTYPE, LAYOUT, Loader
from fastload.bench.subjects.training import CLASSES, TrainingStep, cudnn_search
from fastload.kernels import reference

__all__ = ["SUITE"]

ENDLESS = 10**9
CHECKED_BATCHES = 3


@dataclass(frozen=True)
class Size:
    """The model, and how long it trains: ``steps`` are several times what all queues hold together."""

    model: str
    batch: int
    steps: int
    limit_steps: int
    warm_up: int
    images: int
    side: int

    @classmethod
    def of(cls, case: str, device: torch.device) -> Size:
        model, batch, steps = CASES[case]
        if device.type == "cuda":
            return cls(model, batch, steps, limit_steps=50, warm_up=15, images=4096, side=224)
        return cls("resnet18", batch=4, steps=2, limit_steps=1, warm_up=1, images=16, side=32)


CASES = {
    "resnet18_b512": ("resnet18", 512, 150),
    "resnet50_b256": ("resnet50", 256, 150),
    "vit_b16_b128": ("vit_b_16", 128, 100),
}


@dataclass(frozen=True)
class Source:
    """The images in host memory, and the batches that a subject makes of them."""

    size: Size
    dataset: TensorDataset
    device: torch.device

    @classmethod
    def random(cls, size: Size, device: torch.device) -> Source:
        torch.manual_seed(0)
        images = torch.randint(0, 256, (size.images, 3, size.side, size.side), dtype=torch.uint8)
        labels = torch.randint(CLASSES, (size.images,))
        return cls(size, TensorDataset(images, labels), device)

    def batches(self, subject: str, sampler: Iterable[int] | None = None) -> Batches:
        if subject == "limit":
            return self._kept()
        return DELIVER[subject](self._loader(sampler), self.device)

    def _loader(self, sampler: Iterable[int] | None) -> Loader:
        """Make the loader that a subject wraps; it never ends, so no window meets an epoch's end."""
        return DataLoader(
            self.dataset,
            batch_size=self.size.batch,
            sampler=sampler or RandomSampler(self.dataset, replacement=True, num_samples=ENDLESS),
            num_workers=worker_count(),
            pin_memory=self.device.type == "cuda",
        )

    def _kept(self) -> Batches:
        images, labels = (tensor[: self.size.batch].to(self.device) for tensor in self.dataset.tensors)
        images = reference.flip_normalize(images, MEAN, STD, dtype=DTYPE, memory_format=LAYOUT)
        while True:
            yield images, labels


def measure(plan: Plan) -> list[Row]:
    size = Size.of(plan.case, plan.device)
    source = Source.random(size, plan.device)
    subjects = [name for name in plan.subjects if name != "limit"]
    for name in plan.track(subjects, "checking"):
        _check(name, source)
    with cudnn_search():
        step = TrainingStep(size.model, plan.device)
        _window(step, source, "limit")  # compiles the model, on data that is on the device already
        return next_to_limit(plan, subjects, size.batch, lambda name: _window(step, source, name))


def _check(name: str, source: Source) -> None:
    tensors = (torch.split(tensor, source.size.batch) for tensor in source.dataset.tensors)
    check_batches(
        name,
        source.batches(name, SequentialSampler(source.dataset)),
        list(islice(zip(*tensors, strict=True), CHECKED_BATCHES)),
        dtype=DTYPE,
        arithmetic=ARITHMETIC.get(name, DTYPE),
        memory_format=LAYOUT,
    )


def _window(step: TrainingStep, source: Source, name: str) -> Window:
    size = source.size
    steps = size.limit_steps if name == "limit" else size.steps
    return timed_window(step, source.batches(name), warm_up=size.warm_up, steps=steps, device=source.device)


def settings(device: torch.device) -> dict[str, object]:
    return {
        "sizes": {case: asdict(Size.of(case, device)) for case in CASES},
        "workers": worker_count(),
        **training.describe(device),
        "limit": "one normalised batch kept on the device; measured before and after every other window",
    }


SUITE = Suite(
    name="resident",
    cases=tuple(CASES),
    subjects=("limit", *DELIVER),
    baseline="limit",
    packages={"accelerate": "accelerate", "fabric": "lightning", "timm": "timm"},
    runs=5,
    settings=settings,
    measure=measure,
)
