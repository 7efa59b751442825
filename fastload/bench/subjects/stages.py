"""The input stages that ``jpeg`` compares: from JPEG files to normalised batches on the device, without an end."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import datasets, transforms
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

import fastload as fl
from fastload import transforms as T  # noqa: N812  (as users write it)
from fastload.bench.harness.window import Batches
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.dali import dali
from fastload.bench.subjects.loaders import DTYPE, LAYOUT
from fastload.environment import cores

__all__ = ["CPU_STAGES", "ENDLESS", "STAGES", "Source", "decoding_workers", "describe"]

ENDLESS = 10**9  # samples: more than any window takes
READERS = min(8, cores())  # workers that only read files


@dataclass(frozen=True)
class Source:
    """JPEG files in one folder a class, and the batches that are wanted of them."""

    root: Path
    batch: int
    side: int
    device: torch.device


def decoding_workers() -> int:
    """Workers, or threads, for those who decode on the CPU: all cores but one, which trains."""
    return max(1, cores() - 1)


def pil_timm(source: Source) -> Batches:
    """Decode and crop with Pillow, as most training scripts do; timm's prefetcher normalises."""
    transform = transforms.Compose(
        [transforms.RandomResizedCrop(source.side), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    )
    return _timm(datasets.ImageFolder(source.root, transform), source)


def torchvision_timm(source: Source) -> Batches:
    """Decode with torchvision's own decoder and crop tensors of bytes; timm's prefetcher normalises."""
    transform = v2.Compose([v2.RandomResizedCrop(source.side, antialias=True), v2.RandomHorizontalFlip()])
    return _timm(datasets.ImageFolder(source.root, transform, loader=_decode), source)


def fastload_cpu_decode(source: Source) -> Batches:
    """Workers decode and hand over whole images; the rest happens on the device: for GPUs without a JPEG decoder."""
    return _fastload(source, decoding_workers(), partial(fl.collate, decode=True))


def fastload(source: Source) -> Batches:
    """Workers only read files."""
    return _fastload(source, READERS, fl.collate)


def _decode(path: str) -> torch.Tensor:
    image: torch.Tensor = decode_jpeg(read_file(path), mode=ImageReadMode.RGB)
    return image


def _timm(dataset: Dataset[Any], source: Source) -> Batches:
    from timm.data.loader import PrefetchLoader as TimmPrefetchLoader  # noqa: PLC0415  (a peer that may be missing)
    from timm.data.loader import fast_collate  # noqa: PLC0415

    loader = _loader(dataset, source, decoding_workers(), fast_collate)
    for images, labels in TimmPrefetchLoader(loader, MEAN, STD, device=source.device, img_dtype=DTYPE):
        yield images.contiguous(memory_format=LAYOUT), labels


def _fastload(source: Source, workers: int, collate_fn: Callable[[Any], Any]) -> Batches:
    loader = _loader(fl.data.ImageFolder(source.root), source, workers, collate_fn)
    transform = T.Compose(
        [
            T.DecodeJpeg(),
            T.RandomResizedCrop(source.side),
            T.RandomHorizontalFlip(),
            T.Normalize(MEAN, STD, dtype=DTYPE, memory_format=LAYOUT),
        ]
    )
    with fl.PrefetchLoader(loader, transform=transform, device=source.device) as batches:
        yield from batches


def _loader(dataset: Dataset[Any], source: Source, workers: int, collate_fn: Callable[[Any], Any]) -> DataLoader[Any]:
    gc.collect()  # a worker that inherits batches as garbage is aborted when it collects them
    return DataLoader(
        dataset,
        batch_size=source.batch,
        sampler=RandomSampler(dataset, replacement=True, num_samples=ENDLESS),  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=collate_fn,
        pin_memory=source.device.type == "cuda",
    )


def _dali(source: Source) -> Batches:
    return dali(source.root, source.batch, source.side, source.device, threads=decoding_workers())


def describe() -> dict[str, object]:
    return {"decoding_workers": decoding_workers(), "reading_workers": READERS}


STAGES: dict[str, Callable[[Source], Batches]] = {
    "pil_timm": pil_timm,
    "torchvision_timm": torchvision_timm,
    "dali": _dali,
    "fastload_cpu_decode": fastload_cpu_decode,
    "fastload": fastload,
}
CPU_STAGES = ("pil_timm", "torchvision_timm", "fastload_cpu_decode")  # those that decode in workers
