"""The training loops that the demo compares: the same photographs, in the same order, from the same seed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from fastload.demo.photographs import loaders
from fastload.demo.settings import SEED, Settings
from fastload.environment import cores
from fastload.loader import PrefetchLoader
from fastload.offload.offload import offload
from fastload.report.measured import MeasuredLoader
from fastload.report.report import Report
from fastload.report.watch import watch
from fastload.streams import STREAMLESS, Timestamp
from fastload.training.step import TrainStep

__all__ = ["LOOPS", "LoopResult", "warm_up"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LEARNING_RATE = 1e-3
FLOATS = v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)
PROCESS_PEAK = Path("/proc/self/clear_refs")

Batches = Iterable[tuple[Tensor, Tensor]]
Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LoopResult:
    """What was measured of one loop.

    ``report`` says where its time went; ``loss`` is the mean over the last epoch; ``accuracy`` that of held-out images,
    from 0 to 1; ``peak_bytes`` None where it cannot be measured.
    """

    images_per_second: float
    report: Report
    peak_bytes: int | None
    loss: float
    accuracy: float

    @property
    def waiting(self) -> float:
        """The part of the time in which the device had no batch, from 0 to 1."""
        return self.report.stats.total.stalled


def train_plainly(settings: Settings, advance: Callable[[], None]) -> LoopResult:
    """Train by a handwritten loop over a ``DataLoader`` that normalises on the CPU; ``advance`` is called each step."""
    model, optimizer, scheduler = _start(settings)
    device, dtype = settings.device, {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            loss = cross_entropy(model(images), labels)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        return loss.detach()

    train, held_out = (PlainLoader(part, device) for part in loaders(settings, *FLOATS))
    return _measure(settings, model, step, train=watch(train, device), held_out=held_out, advance=advance)


def train_prefetched(settings: Settings, advance: Callable[[], None]) -> LoopResult:
    """Train through ``PrefetchLoader``: workers decode and augment, the device normalises."""
    return _train(
        settings, [PrefetchLoader(part, MEAN, STD, device=settings.device) for part in loaders(settings)], advance
    )


def train_offloaded(settings: Settings, advance: Callable[[], None]) -> LoopResult:
    """Train through ``offload`` of the plain loop's loaders: workers read files, the device does the rest."""
    plain = loaders(settings, *FLOATS)
    return _train(settings, [offload(part, device=settings.device, verbose=False) for part in plain], advance)


LOOPS = {"plain loop": train_plainly, "PrefetchLoader": train_prefetched, "offload": train_offloaded}
"""Each trains by the settings, and calls its second argument each step."""


def _train(settings: Settings, parts: Sequence[PrefetchLoader], advance: Callable[[], None]) -> LoopResult:
    """Train by ``TrainStep``."""
    model, optimizer, scheduler = _start(settings)
    step = TrainStep(model, optimizer, cross_entropy, precision=settings.precision, scheduler=scheduler)
    train, held_out = parts
    with train, held_out:
        return _measure(
            settings, model, lambda *batch: step(*batch).loss, train=train, held_out=held_out, advance=advance
        )


@dataclass
class PlainLoader:
    """Copies each batch to the device when it is asked for, as a handwritten training loop does."""

    loader: DataLoader[tuple[Tensor, int]]
    device: torch.device

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self.loader:
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


def _measure(
    settings: Settings,
    model: nn.Module,
    step: Step,
    *,
    train: MeasuredLoader,
    held_out: Batches,
    advance: Callable[[], None],
) -> LoopResult:
    _reset_peak_memory(settings.device)
    losses = []
    start: Timestamp | None = None
    for _ in range(settings.epochs):
        for images, labels in train:
            start = Timestamp(settings.device) if start is None else start  # workers have started
            losses.append(step(images, labels))
            advance()
    assert start is not None
    seconds = start.seconds_to(Timestamp(settings.device))
    return LoopResult(
        images_per_second=len(losses) * settings.batch_size / seconds,
        report=train.report(show=False),
        peak_bytes=_peak_memory(settings.device),
        loss=torch.stack(losses[-len(losses) // settings.epochs :]).mean().item(),
        accuracy=_accuracy(model, held_out) / len(settings.held_out),
    )


@torch.inference_mode()
def _accuracy(model: nn.Module, batches: Batches) -> int:
    model.eval()
    return int(sum((model(images).argmax(1) == labels).sum() for images, labels in batches))


def _start(settings: Settings) -> tuple[nn.Module, torch.optim.Optimizer, LRScheduler]:
    torch.manual_seed(SEED)
    model = torchvision.models.get_model(settings.model, weights=None, num_classes=len(settings.classes))
    model.to(settings.device)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, fused=True)
    return model, optimizer, CosineAnnealingLR(optimizer, settings.steps)


def warm_up(settings: Settings) -> None:
    """Take one step, so that the device's libraries are loaded before the first loop is timed."""
    if settings.device.type == "cpu":
        # Leave the workers cores of their own: an operator waits for the slowest of its threads.
        torch.set_num_threads(max(1, cores() - settings.workers))
    model, optimizer, _ = _start(settings)
    images = torch.zeros(settings.batch_size, 3, settings.size, settings.size, device=settings.device)
    labels = torch.zeros(settings.batch_size, dtype=torch.long, device=settings.device)
    TrainStep(model, optimizer, cross_entropy, precision=settings.precision)(images, labels)


def _reset_peak_memory(device: torch.device) -> None:
    gc.collect()
    if device.type not in STREAMLESS:
        torch.accelerator.reset_peak_memory_stats(device)
    elif PROCESS_PEAK.exists():
        PROCESS_PEAK.write_text("5")  # Linux's code for "reset the peak"


def _peak_memory(device: torch.device) -> int | None:
    """The most bytes since the reset: of tensors on the device, or of this process if tensors lie in its memory."""
    if device.type not in STREAMLESS:
        return torch.accelerator.max_memory_allocated(device)
    if not PROCESS_PEAK.exists():
        return None
    lines = (PROCESS_PEAK.parent / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
