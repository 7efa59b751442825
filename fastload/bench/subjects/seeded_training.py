"""``SeededTraining``: the order of the files and the loader of one run of ``accuracy``, and its two input stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload as fl
from fastload import transforms as T  # noqa: N812  (as users write it)
from fastload.bench.harness.window import Batches
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.workers import decoding_workers

__all__ = ["ACCURACY_STAGES", "ERASED", "JITTER", "SeededTraining"]

JITTER = 0.4
ERASED = 0.25


@dataclass(frozen=True)
class SeededTraining:
    """The files that one model is trained on, in an order that the seed decides."""

    root: Path
    side: int
    batch: int
    epochs: int
    seed: int
    device: torch.device

    @cached_property
    def order(self) -> list[list[int]]:
        """The batches of all epochs, as indices of files."""
        files = len(ImageFolder(self.root))
        generator = torch.Generator().manual_seed(self.seed)
        whole = files - files % self.batch
        epochs = (torch.randperm(files, generator=generator)[:whole] for _ in range(self.epochs))
        return [batch for epoch in epochs for batch in epoch.view(-1, self.batch).tolist()]

    def loader(self, dataset: Dataset[Any], collate_fn: Callable[[Any], Any] | None = None) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            batch_sampler=self.order,
            num_workers=decoding_workers(),
            collate_fn=collate_fn,
            pin_memory=self.device.type == "cuda",
        )


def pil(training: SeededTraining) -> Batches:
    """Do everything in the workers, with Pillow and torchvision v2."""
    recipe = [
        v2.RandomResizedCrop(training.side),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(JITTER, JITTER, JITTER),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
        v2.RandomErasing(ERASED),
    ]
    for images, labels in training.loader(ImageFolder(training.root, v2.Compose(recipe))):
        yield images.to(training.device, non_blocking=True), labels.to(training.device, non_blocking=True)


def fastload(training: SeededTraining) -> Batches:
    """Do everything on the device; workers only read."""
    recipe = [
        T.DecodeJpeg(),
        T.RandomResizedCrop(training.side),
        T.RandomHorizontalFlip(),
        T.ColorJitter(JITTER, JITTER, JITTER),
        T.Normalize(MEAN, STD),
        T.RandomErasing(ERASED),
    ]
    loader = training.loader(fl.data.ImageFolder(training.root), fl.collate)
    with fl.PrefetchLoader(loader, transform=T.Compose(recipe), device=training.device, seed=training.seed) as batches:
        yield from batches


ACCURACY_STAGES: dict[str, Callable[[SeededTraining], Batches]] = {"pil": pil, "fastload": fastload}
