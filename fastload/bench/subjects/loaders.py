"""The loaders that ``resident`` compares: uint8 batches in host memory to normalised ones on the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.data import DataLoader

from fastload.bench.harness.window import Batches
from fastload.bench.imagenet import MEAN, STD
from fastload.loader import PrefetchLoader

__all__ = ["ARITHMETIC", "DELIVER", "DTYPE", "LAYOUT", "Loader"]

DTYPE = torch.bfloat16
LAYOUT = torch.channels_last

Loader = DataLoader[tuple[torch.Tensor, ...]]


def plain(loader: Loader, device: torch.device) -> Batches:
    normalize = LoopNormalize(device)
    for images, labels in loader:
        yield normalize(images.to(device, non_blocking=True)), labels.to(device, non_blocking=True)


def accelerate(loader: Loader, device: torch.device) -> Batches:
    from accelerate import Accelerator, DataLoaderConfiguration  # noqa: PLC0415  (a peer that may be missing)

    configuration = DataLoaderConfiguration(non_blocking=True)
    accelerator = Accelerator(cpu=device.type == "cpu", dataloader_config=configuration)
    normalize = LoopNormalize(device)
    try:
        for images, labels in accelerator.prepare(loader):
            yield normalize(images), labels
    finally:
        accelerator.free_memory()  # otherwise it keeps the loader, whose workers go on


def fabric(loader: Loader, device: torch.device) -> Batches:
    from lightning.fabric import Fabric  # noqa: PLC0415  (a peer that may be missing)

    normalize = LoopNormalize(device)
    for images, labels in Fabric(accelerator=device.type, devices=1).setup_dataloaders(loader):
        yield normalize(images), labels


def timm(loader: Loader, device: torch.device) -> Batches:
    from timm.data.loader import PrefetchLoader as TimmPrefetchLoader  # noqa: PLC0415  (a peer that may be missing)

    for images, labels in TimmPrefetchLoader(loader, MEAN, STD, device=device, img_dtype=DTYPE):
        yield images.contiguous(memory_format=LAYOUT), labels


def fastload(loader: Loader, device: torch.device) -> Batches:
    with PrefetchLoader(loader, MEAN, STD, device=device, dtype=DTYPE, memory_format=LAYOUT) as batches:
        yield from batches


class LoopNormalize:
    """Normalisation written by hand in the training loop: timm's arithmetic, in the loop's own stream."""

    def __init__(self, device: torch.device) -> None:
        self.mean, self.std = (
            torch.tensor(values, device=device).mul_(255).to(DTYPE).view(1, 3, 1, 1) for values in (MEAN, STD)
        )

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(DTYPE, memory_format=LAYOUT).sub_(self.mean).div_(self.std)


DELIVER: dict[str, Callable[[Loader, torch.device], Batches]] = {
    "plain": plain,
    "accelerate": accelerate,
    "fabric": fabric,
    "timm": timm,
    "fastload": fastload,
}
ARITHMETIC = {"fastload": torch.float32}  # what a subject computes in; the others in DTYPE
