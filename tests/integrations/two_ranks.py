"""50 steps on two ranks: fastload's transforms on the device, and the same ones on the host, of the framework's loader.

``python -m torch.distributed.run --nproc-per-node 2 -m tests.integrations.two_ranks cpu HOME`` trains both, with
Accelerate and with Hugging Face's ``Trainer``, and writes what each rank saw to ``HOME``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainingArguments

import fastload as fl
from fastload import transforms as T
from fastload.integrations.transformers import Prefetched
from tests.native_threads import end_beside_gloo

STEPS, BATCH, RANKS, CLASSES = 50, 8, 2, 10
SAMPLES = STEPS * BATCH * RANKS


class Images(Dataset):
    """Random images, the same in each process."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(number)
        pixels = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8, generator=generator)
        return {"pixel_values": pixels, "labels": torch.tensor(number % CLASSES), "number": torch.tensor(number)}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(32, CLASSES)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def transform() -> T.Compose:
    return T.Compose([T.RandomHorizontalFlip(), T.ColorJitter(0.3, 0.3), T.Normalize((0.5,) * 3, (0.25,) * 3)])


def on_host(pixels: torch.Tensor, batch: int, rank: int) -> torch.Tensor:
    """Transform a rank's batch by the reference; Accelerate deals out whole batches in turn."""
    return transform()(pixels.cpu(), T.Key(0, epoch=0, place=(batch * RANKS + rank) * BATCH))


def with_accelerate(device: str, _home: str, *, fast: bool) -> dict[str, Any]:
    """What a rank saw; with ``fast`` images are transformed on ``device``, else on the host, of Accelerate's loader."""
    accelerator = Accelerator(
        cpu=device == "cpu", dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
    )
    loader = accelerator.prepare(DataLoader(Images(), BATCH, shuffle=True))
    if fast:
        loader = fl.PrefetchLoader(loader, transform=transform(), device=accelerator.device, images="pixel_values")
    seen: dict[str, Any] = {"numbers": [], "losses": []}
    network = Network()
    model, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), 0.01))
    for number, batch in enumerate(loader):
        images = batch["pixel_values"] if fast else on_host(batch["pixel_values"], number, accelerator.process_index)
        loss = nn.functional.cross_entropy(model(images.to(accelerator.device)), batch["labels"])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        seen["numbers"].append(batch["number"].tolist())
        seen["losses"].append(loss.item())
    return seen | {"weights": {name: value.cpu() for name, value in network.state_dict().items()}}


class Classifier(nn.Module):
    """A model as the ``Trainer`` takes it; notes what it saw."""

    accepts_loss_kwargs = False

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()
        self.seen: dict[str, Any] = {"numbers": [], "losses": []}

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor, number: torch.Tensor) -> dict[str, Any]:
        logits = self.network(pixel_values)
        loss = nn.functional.cross_entropy(logits, labels)
        self.seen["numbers"].append(number.tolist())
        self.seen["losses"].append(loss.item())
        return {"loss": loss, "logits": logits}


class FastTrainer(Prefetched, Trainer):
    """Transforms on the device."""

    def prefetch(self, loader: Any, training: bool) -> fl.PrefetchLoader:  # noqa: ARG002  (evaluates nothing)
        return fl.PrefetchLoader(loader, transform=transform(), device=self.args.device, images="pixel_values")


class HostTrainer(Trainer):
    """Transforms the batches of the ``Trainer``'s own loader on the host."""

    batches = 0

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *rest: Any) -> torch.Tensor:
        pixels = on_host(inputs["pixel_values"], self.batches, self.args.process_index)
        self.batches += 1
        return super().training_step(model, inputs | {"pixel_values": pixels}, *rest)


def with_trainer(device: str, home: str, *, fast: bool) -> dict[str, Any]:
    """What a rank saw, as :func:`with_accelerate` returns it."""
    arguments = TrainingArguments(
        output_dir=home,
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        use_cpu=device == "cpu",
        optim="sgd",
        learning_rate=0.01,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=0,
    )
    model = Classifier()
    (FastTrainer if fast else HostTrainer)(model=model, args=arguments, train_dataset=Images()).train()
    return model.seen | {"weights": {name: value.cpu() for name, value in model.network.state_dict().items()}}


TRAINERS = {"accelerate": with_accelerate, "trainer": with_trainer}


def main(device: str, home: str) -> None:
    if device == "cuda":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    seen = {(way, fast): train(device, home, fast=fast) for way, train in TRAINERS.items() for fast in (False, True)}
    torch.save(seen, Path(home) / f"{os.environ['RANK']}.pt")
    end_beside_gloo()


if __name__ == "__main__":
    main(*sys.argv[1:])
