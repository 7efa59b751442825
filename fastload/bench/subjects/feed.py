"""``Feed``: the same batches in the same order for every rung of ``ladder``, brought to the device in its way."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.transforms import v2

from fastload.bench.harness.window import Batches
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.photographs import Sample
from fastload.bench.subjects.rung import Rung
from fastload.bench.subjects.workers import worker_count
from fastload.kernels import reference
from fastload.loader import PrefetchLoader

__all__ = ["Feed"]

EPOCHS = 1000  # more than any measurement uses


@dataclass(frozen=True)
class Feed:
    """The same batches in the same order, epoch after epoch, brought to the device in a rung's way."""

    dataset: TensorDataset
    batch: int
    device: torch.device

    def batches(self, rung: Rung) -> Batches:
        if rung.on_device:
            return self._kept(rung)
        return self._prefetched(rung) if rung.prefetch else self._copied(rung)

    def indices(self) -> list[list[int]]:
        order = torch.randperm(len(self.dataset), generator=torch.Generator().manual_seed(0))
        return [chunk.tolist() for chunk in torch.split(order, self.batch) if len(chunk) == self.batch]

    def uint8_batches(self) -> list[Sample]:
        images, labels = self.dataset.tensors
        return [(images[chosen], labels[chosen]) for chosen in self.indices()]

    def _copied(self, rung: Rung) -> Batches:
        for images, labels in self._loader(Normalized(self.dataset), rung):
            yield (
                images.to(self.device, non_blocking=rung.non_blocking),
                labels.to(self.device, non_blocking=rung.non_blocking),
            )

    def _prefetched(self, rung: Rung) -> Batches:
        loader = self._loader(self.dataset, rung)
        with PrefetchLoader(loader, MEAN, STD, device=self.device, dtype=rung.dtype) as batches:
            yield from batches

    def _kept(self, rung: Rung) -> Batches:
        kept = [
            (
                reference.flip_normalize(images.to(self.device), MEAN, STD, dtype=rung.dtype),
                labels.to(self.device),
            )
            for images, labels in self.uint8_batches()
        ]
        yield from cycle(kept)

    def _loader(self, dataset: TensorDataset | Normalized, rung: Rung) -> DataLoader[Sample]:
        return DataLoader(
            dataset,
            batch_sampler=self.indices() * EPOCHS,
            num_workers=worker_count(),
            pin_memory=rung.non_blocking and self.device.type == "cuda",
        )


class Normalized(Dataset[Sample]):
    """Images that workers normalise one by one, in float32, as is usual."""

    def __init__(self, dataset: TensorDataset) -> None:
        self.dataset = dataset
        self.transform = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])

    def __getitem__(self, index: int) -> Sample:
        image, label = self.dataset[index]
        return self.transform(image), label
