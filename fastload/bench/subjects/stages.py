"""The input stages that ``jpeg`` compares: JPEG files to normalised batches on the device, endlessly."""

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
from fastload.bench.subjects.dali import dali, dali_dynamic
from fastload.bench.subjects.loaders import DTYPE, LAYOUT
from fastload.bench.subjects.sample_counter import SampleCounter
from fastload.bench.subjects.spdl import spdl
from fastload.bench.subjects.workers import READING_WORKERS, decoding_workers

__all__ = ["CPU_STAGES", "STAGES", "STATIC_STAGES", "JpegFiles", "endless_loader", "prefetched"]

ENDLESS = 10**9  # samples: more than any window takes


@dataclass(frozen=True)
class JpegFiles:
    """JPEG files, a folder for each class, and the batches to make of them.

    Attributes:
        root: the folder.
        batch: how many images a batch has.
        side: of the square images, in pixels.
        device: where the batches go.
        static: whether ``STATIC_STAGES`` deliver at fixed addresses.
        workers: how many workers there are; None for all cores but one where they decode, and eight where they read.
        counter: counts the images that the workers of ``plain`` and ``oneline`` have decoded.
    """

    root: Path
    batch: int
    side: int
    device: torch.device
    static: bool = False
    workers: int | None = None
    counter: SampleCounter | None = None

    @property
    def decoding(self) -> int:
        return self.workers or decoding_workers()

    @property
    def reading(self) -> int:
        return self.workers or READING_WORKERS


def pil_timm(files: JpegFiles) -> Batches:
    """Decode and crop with Pillow, as most training scripts do; timm's ``PrefetchLoader`` normalises."""
    transform = transforms.Compose(
        [transforms.RandomResizedCrop(files.side), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    )
    return _timm(datasets.ImageFolder(files.root, transform), files)


def torchvision_timm(files: JpegFiles) -> Batches:
    """Decode with torchvision's own decoder, crop uint8 tensors; timm's ``PrefetchLoader`` normalises."""
    return _timm(_cropped(files), files)


def plain(files: JpegFiles) -> Batches:
    """Workers decode and crop; the loop copies without blocking and normalises on the device, as written by hand."""
    mean, std = (torch.tensor(each, device=files.device).view(3, 1, 1) * 255 for each in (MEAN, STD))
    for images, labels in _decoded(files):
        on_device = images.to(files.device, non_blocking=True).to(DTYPE, memory_format=LAYOUT)
        yield on_device.sub_(mean).div_(std), labels.to(files.device, non_blocking=True)


def oneline(files: JpegFiles) -> Batches:
    """The same loader, and one line around it."""
    loader = _decoded(files)
    with fl.PrefetchLoader(loader, MEAN, STD, device=files.device, dtype=DTYPE, memory_format=LAYOUT) as batches:
        yield from batches


def fastload_cpu_decode(files: JpegFiles) -> Batches:
    """Workers decode whole images, and the rest happens on the device: for GPUs without a JPEG decoder."""
    return _fastload(files, files.decoding, partial(fl.collate, decode=True))


def fastload(files: JpegFiles) -> Batches:
    """Workers only read files."""
    return _fastload(files, files.reading, fl.collate)


def offload(files: JpegFiles) -> Batches:
    """An ordinary data set that decodes and transforms in its workers, and one line that moves this to the device."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(files.side),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    plain = endless_loader(datasets.ImageFolder(files.root, transform), files.batch, files.reading, files.device)
    device, static = files.device, files.static
    with fl.offload(plain, device=device, dtype=DTYPE, memory_format=LAYOUT, static=static, verbose=False) as batches:
        yield from batches


def _decoded(files: JpegFiles) -> DataLoader[Any]:
    dataset = _cropped(files)
    counted = dataset if files.counter is None else files.counter.of(dataset)
    return endless_loader(counted, files.batch, files.decoding, files.device)


def _cropped(files: JpegFiles) -> Dataset[Any]:
    transform = v2.Compose([v2.RandomResizedCrop(files.side, antialias=True), v2.RandomHorizontalFlip()])
    dataset: Dataset[Any] = datasets.ImageFolder(files.root, transform, loader=_decode)
    return dataset


def _decode(path: str) -> torch.Tensor:
    image: torch.Tensor = decode_jpeg(read_file(path), mode=ImageReadMode.RGB)
    return image


def _timm(dataset: Dataset[Any], files: JpegFiles) -> Batches:
    from timm.data.loader import PrefetchLoader as TimmPrefetchLoader  # noqa: PLC0415  (a peer that may be missing)
    from timm.data.loader import fast_collate  # noqa: PLC0415

    loader = endless_loader(dataset, files.batch, files.decoding, files.device, fast_collate)
    for images, labels in TimmPrefetchLoader(loader, MEAN, STD, device=files.device, img_dtype=DTYPE):
        yield images.contiguous(memory_format=LAYOUT), labels


def _fastload(files: JpegFiles, workers: int, collate_fn: Callable[[Any], Any]) -> Batches:
    with prefetched(files, workers, collate_fn) as batches:
        yield from batches


def prefetched(
    files: JpegFiles, workers: int, collate_fn: Callable[[Any], Any] = fl.collate, **options: Any
) -> fl.PrefetchLoader[Any]:
    """Return the loader of the subjects ``fastload`` and ``fastload_cpu_decode``, with further options of its own."""
    dataset = fl.data.ImageFolder(files.root)
    # Its thread would only pass files on: fastload pins them itself.
    loader = endless_loader(dataset, files.batch, workers, files.device, collate_fn, pin_memory=False)
    transform = T.Compose(
        [
            T.DecodeJpeg(),
            T.RandomResizedCrop(files.side),
            T.RandomHorizontalFlip(),
            T.Normalize(MEAN, STD, dtype=DTYPE, memory_format=LAYOUT),
        ]
    )
    return fl.PrefetchLoader(loader, transform=transform, device=files.device, static=files.static, **options)


def endless_loader(
    dataset: Dataset[Any],
    batch: int,
    workers: int,
    device: torch.device,
    collate_fn: Callable[[Any], Any] | None = None,
    *,
    pin_memory: bool = True,
) -> DataLoader[Any]:
    """Return a loader of one epoch after the other, each in random order, without an end."""
    gc.collect()  # a forked worker that inherits batches as garbage would be aborted when it collects them
    return DataLoader(
        dataset,
        batch_size=batch,
        sampler=RandomSampler(dataset, num_samples=ENDLESS),  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=collate_fn,
        pin_memory=pin_memory and device.type == "cuda",
    )


def _dali(files: JpegFiles, *, crops_in_decoder: bool) -> Batches:
    threads = files.decoding
    return dali(files.root, files.batch, files.side, files.device, threads=threads, crops_in_decoder=crops_in_decoder)


def _dali_dynamic(files: JpegFiles, *, capture: bool) -> Batches:
    return dali_dynamic(files.root, files.batch, files.side, files.device, threads=files.decoding, capture=capture)


def _spdl(files: JpegFiles) -> Batches:
    return spdl(files.root, files.batch, files.side, files.device, threads=files.decoding)


STAGES: dict[str, Callable[[JpegFiles], Batches]] = {
    "pil_timm": pil_timm,
    "torchvision_timm": torchvision_timm,
    "dali": partial(_dali, crops_in_decoder=False),
    "dali_crop": partial(_dali, crops_in_decoder=True),
    "dali_dynamic": partial(_dali_dynamic, capture=False),
    "dali_capture": partial(_dali_dynamic, capture=True),
    "spdl": _spdl,
    "plain": plain,
    "oneline": oneline,
    "fastload_cpu_decode": fastload_cpu_decode,
    "fastload": fastload,
    "offload": offload,
}
# Those that decode on the CPU, a batch in each worker or thread.
CPU_STAGES = ("pil_timm", "torchvision_timm", "spdl", "plain", "oneline", "fastload_cpu_decode")
STATIC_STAGES = ("fastload", "offload")
