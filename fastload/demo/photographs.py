"""``loaders``: the photographs that the loops train on, in the same order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2

from fastload.demo.settings import SEED, Sample, Settings
from fastload.streams import STREAMLESS

__all__ = ["Photographs", "loaders"]


@dataclass
class Photographs(Dataset[tuple[Tensor, int]]):
    """Image files, decoded and passed through ``transform``, and their labels."""

    samples: list[Sample]
    transform: v2.Transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        return self.transform(default_loader(path)), label


Loader = DataLoader[tuple[Tensor, int]]


def loaders(settings: Settings, *last: v2.Transform) -> tuple[Loader, Loader]:
    """Return loaders of the training and the held-out images: uint8, or what the transforms ``last`` make of them."""
    augment = v2.RandomResizedCrop(settings.size), v2.RandomHorizontalFlip()
    center = v2.Resize(settings.size * 8 // 7), v2.CenterCrop(settings.size)
    train = Photographs(settings.train, v2.Compose([*augment, v2.PILToTensor(), *last]))
    held_out = Photographs(settings.held_out, v2.Compose([*center, v2.PILToTensor(), *last]))
    load = partial(
        DataLoader,
        batch_size=settings.batch_size,
        num_workers=settings.workers,
        pin_memory=settings.device.type not in STREAMLESS,
    )
    shuffle = partial(load, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(SEED))
    return shuffle(train, persistent_workers=settings.workers > 0), load(held_out)
