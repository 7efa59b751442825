"""Whether the input stage on the GPU trains as well as the usual one: same recipe, same seeds, held-out photographs.

A ResNet-18 is trained on few photographs for a short time under heavy augmentation, so that it still makes mistakes.
Each run is a seed of the model's weights, of the order of the files and of the augmentation. All models are evaluated
on the same held-out images, decoded and resized once by Pillow.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torchvision

from fastload.bench.harness.plan import Plan
from fastload.bench.harness.row import Row
from fastload.bench.harness.suite import Sizes, Suite
from fastload.bench.harness.turns import Figure, Figures, by_turns
from fastload.bench.harness.window import Batches
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.photographs import Sample, decoded
from fastload.bench.subjects.seeded_training import ACCURACY_STAGES, ERASED, JITTER, SeededTraining
from fastload.data import sample_data
from fastload.kernels import reference
from fastload.training.precision import autocast

__all__ = ["SUITE"]

CLASSES = 10
PRECISION = "bf16"
EVALUATED_AT_ONCE = 256


@dataclass(frozen=True)
class AccuracySize:
    """How many photographs a model learns from, and for how long."""

    photographs: int = 2000  # one in five held out
    side: int = 128
    batch: int = 64
    epochs: int = 1
    learning_rate: float = 0.02


SIZES = Sizes(gpu=AccuracySize(), cpu=AccuracySize(photographs=20, side=32, batch=16))


def measure(plan: Plan[AccuracySize]) -> list[Row]:
    size = plan.size
    seeds: dict[str, Iterator[int]] = defaultdict(itertools.count)
    with tempfile.TemporaryDirectory(prefix="fastload-bench-") as folder:
        root = sample_data(Path(folder) / "photographs", size.photographs)
        held_out = decoded(root / "val", size.side).tensors

        def train(name: str) -> Figures:
            training = SeededTraining(
                root / "train", size.side, size.batch, size.epochs, seed=next(seeds[name]), device=plan.device
            )
            return _evaluate(_train(ACCURACY_STAGES[name], training, size.learning_rate), held_out, plan.device)

        return by_turns(plan, plan.subjects, train, summary=_mean_and_deviation)


def _train(
    stage: Callable[[SeededTraining], Batches], training: SeededTraining, learning_rate: float
) -> torch.nn.Module:
    torch.manual_seed(training.seed)  # of the weights, and of the draws of torchvision's transforms
    built = torchvision.models.resnet18(num_classes=CLASSES)
    model: torch.nn.Module = built.to(training.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=1e-4)
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
def _evaluate(model: torch.nn.Module, held_out: Sample, device: torch.device) -> Figures:
    """Return the mean cross-entropy and the accuracy, in float32."""
    images, labels = (tensor.to(device) for tensor in held_out)
    batches = torch.split(reference.flip_normalize(images, MEAN, STD), EVALUATED_AT_ONCE)
    outputs = torch.cat([model(batch) for batch in batches])
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    accuracy = (outputs.argmax(1) == labels).double().mean()
    return {"eval_loss": Figure(float(loss)), "eval_accuracy": Figure(float(accuracy))}


def _mean_and_deviation(values: Sequence[float]) -> dict[str, float]:
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0}


def settings(device: torch.device) -> dict[str, object]:
    return {
        **asdict(SIZES.on(device)),
        "recipe": f"random resized crop, flip, colour jitter {JITTER}, random erasing {ERASED}",
        "precision": f"{PRECISION} autocast; evaluated in fp32",
        "optimizer": "SGD, momentum 0.9, weight decay 1e-4, learning rate falling to 0 along a line",
        "runs": "seeds, from 0; mean and standard deviation over them",
    }


SUITE = Suite(
    name="accuracy",
    cases={"resnet18": SIZES},
    subjects=tuple(ACCURACY_STAGES),
    baseline="pil",
    packages={},
    runs=5,
    settings=settings,
    measure=measure,
)
