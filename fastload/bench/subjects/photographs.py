"""``PhotographSplits``: sample photographs in host memory, decoded and resized before anything is measured."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload.bench.subjects.workers import worker_count
from fastload.data import sample_data

__all__ = ["PhotographSplits", "Sample", "decoded"]

Sample = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class PhotographSplits:
    """uint8 images (3, side, side) with their classes: some to train on, others held out."""

    train: TensorDataset
    held_out: TensorDataset
    classes: int

    @classmethod
    def sample(cls, images: int, side: int) -> PhotographSplits:
        with tempfile.TemporaryDirectory(prefix="fastload-bench-") as folder:
            root = sample_data(Path(folder) / "photographs", images)
            train, held_out = (decoded(root / split, side) for split in ("train", "val"))
            return cls(train, held_out, len(list((root / "train").iterdir())))


def decoded(folder: Path, side: int) -> TensorDataset:
    """Return a folder's images as in evaluation, resized and cropped at the centre, and their classes' numbers."""
    resize = v2.Compose([v2.Resize(side * 256 // 224), v2.CenterCrop(side), v2.PILToTensor()])
    loader = DataLoader(ImageFolder(folder, resize), batch_size=64, num_workers=worker_count())
    images, labels = zip(*loader, strict=True)
    return TensorDataset(torch.cat(images), torch.cat(labels))
