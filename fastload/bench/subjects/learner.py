"""``Learner``: a Vision Transformer, and the step that trains it in the way of a rung of ``ladder``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

import torch
from torchvision.models import VisionTransformer

from fastload.bench.harness.window import Step, synchronize
from fastload.bench.subjects.photographs import Sample
from fastload.bench.subjects.rung import Rung
from fastload.training.precision import autocast, grad_scaler
from fastload.training.step import TrainStep

__all__ = ["Evaluation", "LadderSize", "Learner"]


@dataclass(frozen=True)
class LadderSize:
    """The Vision Transformer, ViT-B/16 unless told otherwise, and how long it trains."""

    side: int = 224
    layers: int = 12
    heads: int = 12
    width: int = 768
    batch: int = 128
    photographs: int = 2560  # one in five held out
    train_steps: int = 100
    learning_rate: float = 3e-4
    learning_rate_warm_up: int = 20
    window_steps: int = 20
    window_warm_up: int = 5

    def build(self, classes: int) -> VisionTransformer:
        return VisionTransformer(
            image_size=self.side,
            patch_size=16,
            num_layers=self.layers,
            num_heads=self.heads,
            hidden_dim=self.width,
            mlp_dim=4 * self.width,
            num_classes=classes,
        )


@dataclass(frozen=True)
class Evaluation:
    """How fast and how well a model predicts: accuracy from 0 to 1, and mean cross-entropy, which changes earlier."""

    img_per_s: float
    accuracy: float
    loss: float


class Learner:
    """A model and its training step, in the way of a rung."""

    def __init__(self, rung: Rung, size: LadderSize, classes: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.precision = _precision(rung.precision, device)
        self.model = size.build(classes).to(device)
        fused = True if rung.fused else None  # None is PyTorch's own choice
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=size.learning_rate, fused=fused)
        warm_up = size.learning_rate_warm_up
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warm_up, total_iters=warm_up)
        build_step = self._fastload_step if rung.fused else self._handwritten_step
        self.step: Step = build_step(rung, optimizer, scheduler)

    @property
    def evaluations(self) -> dict[str, str]:
        """The precisions to evaluate in, by the suffix that each gives to a metric's name."""
        low = "bf16" if self.precision == "bf16" else _precision("fp16", self.device)
        return {"": "fp32", "_autocast": low}

    def _fastload_step(
        self, _rung: Rung, optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LRScheduler
    ) -> Step:
        model = cast(torch.nn.Module, torch.compile(self.model)) if self.device.type == "cuda" else self.model
        loss_fn = torch.nn.functional.cross_entropy
        step = TrainStep(model, optimizer, loss_fn, precision=self.precision, scheduler=scheduler)
        return lambda images, labels: step(images, labels).loss

    def _handwritten_step(
        self, rung: Rung, optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LRScheduler
    ) -> Step:
        scaler = grad_scaler(self.precision, self.device)

        def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=rung.set_to_none)
            with autocast(self.precision, self.device):
                loss = torch.nn.functional.cross_entropy(self.model(images), labels)
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            return loss.detach()

        return step

    @torch.inference_mode()
    def evaluate(self, held_out: list[Sample], precision: str) -> Evaluation:
        """Evaluate the model, not compiled, on batches on the device."""
        self.model.eval()
        synchronize(self.device)
        start = time.perf_counter()
        with autocast(precision, self.device):
            outputs = torch.cat([self.model(images) for images, _ in held_out]).float()
        synchronize(self.device)
        seconds = time.perf_counter() - start
        self.model.train()
        labels = torch.cat([labels for _, labels in held_out])
        return Evaluation(
            img_per_s=len(labels) / seconds,
            accuracy=float((outputs.argmax(1) == labels).double().mean()),
            loss=float(torch.nn.functional.cross_entropy(outputs, labels)),
        )


def _precision(wanted: str, device: torch.device) -> str:
    """Return bf16 instead of fp16 on the CPU, which is slow in fp16 if it can compute in it at all."""
    return "bf16" if wanted == "fp16" and device.type == "cpu" else wanted
