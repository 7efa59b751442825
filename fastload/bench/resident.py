"""How near training comes to its speed with data on the GPU, when decoded images wait in host memory.

Every subject gets the same loader and feeds the same compiled training step. Its speed is divided by that of
the ``limit``, the step on one batch kept on the device, measured just before and just after it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice

import torch
import torchvision
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset

from fastload.bench.check import check_batches
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.loaders import ARITHMETIC, DELIVER, DTYPE, LAYOUT, Loader
from fastload.bench.result import Row, ratio_to, row
from fastload.bench.suite import Plan, Suite, worker_count
from fastload.bench.window import Batches, Window, timed_window
from fastload.kernels import reference

__all__ = ["SUITE"]

CLASSES = 1000
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


class TrainingStep:
    """Forward in bf16, backward, SGD: the same for every subject."""

    def __init__(self, size: Size, device: torch.device) -> None:
        torch.manual_seed(0)
        model = torchvision.models.get_model(size.model, num_classes=CLASSES)
        self.model = model.to(device, memory_format=LAYOUT).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, fused=True)
        self.forward = torch.compile(self.model) if device.type == "cuda" else self.model

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(images.device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.forward(images), labels)
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


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
    with _cudnn_search():
        step = TrainingStep(size, plan.device)
        _window(step, source, "limit")  # compiles the model, on data that is on the device already
        return _alternate(plan, step, source, subjects)


@contextmanager
def _cudnn_search() -> Iterator[None]:
    """Let cuDNN try its algorithms for each convolution, as a training of fixed shapes should."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


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


def _alternate(plan: Plan, step: TrainingStep, source: Source, subjects: list[str]) -> list[Row]:
    windows: dict[str, list[Window]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    windows["limit"].append(_window(step, source, "limit"))
    for name in plan.alternate(subjects):
        window = _window(step, source, name)
        windows["limit"].append(_window(step, source, "limit"))
        before, after = windows["limit"][-2:]
        windows[name].append(window)
        ratios[name].append(2 * window.steps_per_s / (before.steps_per_s + after.steps_per_s))
    ratios["limit"] = [1.0]
    return [_row(plan.case, name, source.size, windows[name], ratios[name]) for name in ("limit", *subjects)]


def _row(case: str, name: str, size: Size, windows: list[Window], ratios: list[float]) -> Row:
    peaks = [window.peak_gib for window in windows if window.peak_gib is not None]
    return row(
        case,
        name,
        "img_per_s",
        [size.batch * window.steps_per_s for window in windows],
        peak_gib=statistics.median(peaks) if peaks else None,
        **ratio_to("limit", ratios),
    )


def settings(device: torch.device) -> dict[str, object]:
    return {
        "sizes": {case: asdict(Size.of(case, device)) for case in CASES},
        "workers": worker_count(),
        "compiled": device.type == "cuda",
        "precision": "bf16 autocast",
        "memory_format": str(LAYOUT),
        "optimizer": "SGD, fused, momentum 0.9",
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
