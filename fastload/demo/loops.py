"""The two loops that the demo compares, on the same batches from the same seed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
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
from fastload.demo.stall_clock import StallClock
from fastload.environment import cores
from fastload.loader import PrefetchLoader
from fastload.streams import STREAMLESS
from fastload.training.step import TrainStep

__all__ = ["Result", "train_plainly", "train_with_fastload", "warm_up"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LEARNING_RATE = 1e-3
PROCESS_PEAK = Path("/proc/self/clear_refs")

Batches = Iterable[tuple[Tensor, Tensor]]
Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Result:
    """What one loop came to; shares are from 0 to 1, and the loss is the mean of the last epoch's."""

    images_per_second: float
    waiting: float
    peak_bytes: int | None
    loss: float
    accuracy: float


def train_plainly(settings: Settings, advance: Callable[[], None]) -> Result:
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

    floats = v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)
    train, held_out = (PlainLoader(part, device) for part in loaders(settings, *floats))
    return _measure(settings, model, step, train=train, held_out=held_out, advance=advance)


def train_with_fastload(settings: Settings, advance: Callable[[], None]) -> Result:
    model, optimizer, scheduler = _start(settings)
    step = TrainStep(model, optimizer, cross_entropy, precision=settings.precision, scheduler=scheduler)
    train, held_out = (PrefetchLoader(part, MEAN, STD, device=settings.device) for part in loaders(settings))
    with train, held_out:
        return _measure(
            settings, model, lambda *batch: step(*batch).loss, train=train, held_out=held_out, advance=advance
        )


@dataclass
class PlainLoader:
    """What a training script writes out: each batch copied to the device when its turn has come."""

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
    train: Batches,
    held_out: Batches,
    advance: Callable[[], None],
) -> Result:
    _reset_peak_memory(settings.device)
    clock = StallClock(settings.device)
    batches = chain.from_iterable(train for _ in range(settings.epochs))
    losses = []
    while True:
        with clock.waiting():
            batch = next(batches, None)
        if batch is None:
            break
        losses.append(step(*batch))
        advance()
    images = len(losses) * settings.batch_size
    return Result(
        images_per_second=images / clock.seconds(),
        waiting=clock.share(),
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
    """Load the device's libraries before the first loop, or it alone would pay for them."""
    if settings.device.type == "cpu":
        # Threads of the model that share a core with a worker wait for each other, up to ten times as long.
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
        PROCESS_PEAK.write_text("5")  # the kernel's code for "start the peak afresh"


def _peak_memory(device: torch.device) -> int | None:
    """Bytes since the reset: of the device's tensors, or of this process where they lie in its memory."""
    if device.type not in STREAMLESS:
        return torch.accelerator.max_memory_allocated(device)
    if not PROCESS_PEAK.exists():
        return None
    lines = (PROCESS_PEAK.parent / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
