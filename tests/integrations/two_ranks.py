"""50 steps with Accelerate on two ranks, with the transforms on the device and with the same ones on the host.

``python -m torch.distributed.run --nproc-per-node 2 -m tests.integrations.two_ranks cpu HOME`` trains both ways, and
writes what each rank saw to ``HOME``.
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

import fastload as fl
from fastload import transforms as T

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


def with_accelerate(device: str, *, fast: bool) -> dict[str, Any]:
    """What a rank saw; with ``fast`` images are transformed on ``device``, else on the host by the reference."""
    accelerator = Accelerator(
        cpu=device == "cpu", dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
    )
    own = accelerator.prepare(DataLoader(Images(), BATCH, shuffle=True))
    seen: dict[str, Any] = {"own": [batch["number"].tolist() for batch in own], "numbers": [], "losses": []}
    own.set_epoch(0)
    where = accelerator.device if fast else "cpu"
    loader = fl.PrefetchLoader(own, transform=transform(), device=where, images="pixel_values")
    network = Network()
    model, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), 0.01))
    for batch in loader:
        images, labels = (batch[name].to(accelerator.device) for name in ("pixel_values", "labels"))
        loss = nn.functional.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        seen["numbers"].append(batch["number"].tolist())
        seen["losses"].append(loss.item())
    return seen | {"weights": {name: value.cpu() for name, value in network.state_dict().items()}}


def main(device: str, home: str) -> None:
    if device == "cuda":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    both = {fast: with_accelerate(device, fast=fast) for fast in (False, True)}
    torch.save(both, Path(home) / f"{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
