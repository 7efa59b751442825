"""Whether the input stage on the GPU trains as well as the usual one: same recipe, same seeds, held-out photographs.

A ResNet-18 is trained on few of them for a short time under heavy augmentation, so that there is something left to get
wrong. Each run is a seed: of the model's weights, of the order of the files and of the augmentation. Both are judged on
the same held-out images, decoded and resized once by Pillow.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload as fl
from fastload import transforms as T  # noqa: N812  (as users write it)
from fastload.bench.harness.result import Row, row
from fastload.bench.harness.suite import Plan, Suite
from fastload.bench.harness.window import Batches
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.photographs import Sample, decoded
from fastload.bench.subjects.stages import decoding_workers
from fastload.data import sample_data
from fastload.kernels import reference
from fastload.training.precision import autocast

__all__ = ["SUITE"]

CLASSES = 10
PRECISION = "bf16"
JITTER = 0.4
ERASED = 0.25
EVALUATED_AT_ONCE = 256


@dataclass(frozen=True)
class Size:
    """How much is learnt from how many photographs."""

    photographs: int = 2000  # one in five held out
    side: int = 128
    batch: int = 64
    epochs: int = 1
    learning_rate: float = 0.02

    @classmethod
    def of(cls, device: torch.device) -> Size:
        return cls() if device.type == "cuda" else cls(photographs=40, side=32, batch=8, epochs=2)


@dataclass(frozen=True)
class Training:
    """What one model is trained on, and how it is fed."""

    root: Path
    size: Size
    seed: int
    device: torch.device

    @cached_property
    def order(self) -> list[list[int]]:
        """The batches of all epochs, in an order that the seed alone decides."""
        files = len(ImageFolder(self.root))
        generator = torch.Generator().manual_seed(self.seed)
        whole = files - files % self.size.batch
        epochs = (torch.randperm(files, generator=generator)[:whole] for _ in range(self.size.epochs))
        return [batch for epoch in epochs for batch in epoch.view(-1, self.size.batch).tolist()]

    def loader(self, dataset: Dataset[Any], collate_fn: Callable[[Any], Any] | None = None) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            batch_sampler=self.order,
            num_workers=decoding_workers(),
            collate_fn=collate_fn,
            pin_memory=self.device.type == "cuda",
        )


def pil(training: Training) -> Batches:
    """Everything in the workers, with Pillow and torchvision v2."""
    recipe = [
        v2.RandomResizedCrop(training.size.side),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(JITTER, JITTER, JITTER),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
        v2.RandomErasing(ERASED),
    ]
    for images, labels in training.loader(ImageFolder(training.root, v2.Compose(recipe))):
        yield images.to(training.device, non_blocking=True), labels.to(training.device, non_blocking=True)


def fastload(training: Training) -> Batches:
    """Everything on the device; workers only read."""
    recipe = [
        T.DecodeJpeg(),
        T.RandomResizedCrop(training.size.side),
        T.RandomHorizontalFlip(),
        T.ColorJitter(JITTER, JITTER, JITTER),
        T.Normalize(MEAN, STD),
        T.RandomErasing(ERASED),
    ]
    loader = training.loader(fl.data.ImageFolder(training.root), fl.collate)
    with fl.PrefetchLoader(loader, transform=T.Compose(recipe), device=training.device, seed=training.seed) as batches:
        yield from batches


STAGES: dict[str, Callable[[Training], Batches]] = {"pil": pil, "fastload": fastload}


def measure(plan: Plan) -> list[Row]:
    size = Size.of(plan.device)
    figures: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="fastload-bench-") as folder:
        root = sample_data(Path(folder) / "photographs", size.photographs)
        held_out = decoded(root / "val", size.side).tensors
        for name in plan.alternate(plan.subjects):
            seed = len(figures[name, "eval_loss"])
            model = _train(STAGES[name], Training(root / "train", size, seed, plan.device))
            loss, accuracy = _evaluate(model, held_out, plan.device)
            figures[name, "eval_loss"].append(loss)
            figures[name, "eval_accuracy"].append(accuracy)
    return [
        row(plan.case, name, metric, values, mean=statistics.fmean(values), std=_deviation(values))
        for (name, metric), values in figures.items()
    ]


def _train(stage: Callable[[Training], Batches], training: Training) -> torch.nn.Module:
    torch.manual_seed(training.seed)  # of the weights, and of what torchvision's transforms draw
    built = torchvision.models.resnet18(num_classes=CLASSES)
    model: torch.nn.Module = built.to(training.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=training.size.learning_rate, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=len(training.order))
    with closing(stage(training)) as batches:
        for images, labels in batches:
            with autocast(PRECISION, training.device):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    return model.eval()


@torch.inference_mode()
def _evaluate(model: torch.nn.Module, held_out: Sample, device: torch.device) -> tuple[float, float]:
    """Return the mean cross-entropy and the accuracy, in float32."""
    images, labels = (tensor.to(device) for tensor in held_out)
    batches = torch.split(reference.flip_normalize(images, MEAN, STD), EVALUATED_AT_ONCE)
    outputs = torch.cat([model(batch) for batch in batches])
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    return float(loss), float((outputs.argmax(1) == labels).double().mean())


def _deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def settings(device: torch.device) -> dict[str, object]:
    return {
        **asdict(Size.of(device)),
        "recipe": f"random resized crop, flip, colour jitter {JITTER}, random erasing {ERASED}",
        "precision": f"{PRECISION} autocast; evaluated in fp32",
        "optimizer": "SGD, momentum 0.9, weight decay 1e-4, learning rate falling to 0 along a line",
        "runs": "seeds, from 0; mean and standard deviation over them",
    }


SUITE = Suite(
    name="accuracy",
    cases=("resnet18",),
    subjects=tuple(STAGES),
    baseline="pil",
    packages={},
    runs=5,
    settings=settings,
    measure=measure,
)
