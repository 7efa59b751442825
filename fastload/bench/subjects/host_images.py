"""``HostImages``: decoded images in host memory, and the batches that the subjects of ``resident`` make of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset

from fastload.bench.harness.check import check_batches
from fastload.bench.harness.window import Batches
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.loaders import ARITHMETIC, DELIVER, DTYPE, LAYOUT, Loader
from fastload.bench.subjects.training import CLASSES
from fastload.bench.subjects.workers import worker_count
from fastload.kernels import reference

__all__ = ["HostImages"]

ENDLESS = 10**9
CHECKED_BATCHES = 3


@dataclass(frozen=True)
class HostImages:
    """Random uint8 images in host memory, and the batches that a subject makes of them."""

    dataset: TensorDataset
    batch: int
    device: torch.device

    @classmethod
    def random(cls, images: int, side: int, batch: int, device: torch.device) -> HostImages:
        torch.manual_seed(0)
        pixels = torch.randint(0, 256, (images, 3, side, side), dtype=torch.uint8)
        return cls(TensorDataset(pixels, torch.randint(CLASSES, (images,))), batch, device)

    def batches(self, subject: str, sampler: Iterable[int] | None = None) -> Batches:
        if subject == "limit":
            return self._kept()
        return DELIVER[subject](self._loader(sampler), self.device)

    def check(self, subject: str) -> None:
        """Raise ``WrongValuesError`` if a subject's first batches are wrong."""
        tensors = (torch.split(tensor, self.batch) for tensor in self.dataset.tensors)
        check_batches(
            subject,
            self.batches(subject, SequentialSampler(self.dataset)),
            list(islice(zip(*tensors, strict=True), CHECKED_BATCHES)),
            dtype=DTYPE,
            arithmetic=ARITHMETIC.get(subject, DTYPE),
            memory_format=LAYOUT,
        )

    def _loader(self, sampler: Iterable[int] | None) -> Loader:
        """Return the loader that a subject wraps; it never ends, so no window contains an epoch's end."""
        return DataLoader(
            self.dataset,
            batch_size=self.batch,
            sampler=sampler or RandomSampler(self.dataset, num_samples=ENDLESS),
            num_workers=worker_count(),
            pin_memory=self.device.type == "cuda",
        )

    def _kept(self) -> Batches:
        images, labels = (tensor[: self.batch].to(self.device) for tensor in self.dataset.tensors)
        images = reference.flip_normalize(images, MEAN, STD, dtype=DTYPE, memory_format=LAYOUT)
        while True:
            yield images, labels
