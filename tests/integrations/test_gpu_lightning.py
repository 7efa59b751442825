"""Fifty steps of Lightning's DDP: fastload's loader on the device against Lightning's own, augmented on the host."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

from fastload import transforms as T
from fastload.integrations.lightning import Prefetch

RANKS, BATCH, STEPS, SIZE, CLASSES = 2, 8, 50, 32, 10
PER_EPOCH = 10  # batches of a rank

Run = tuple[list[list[int]], list[float], torch.Tensor]  # each step's samples and loss, and the weights at the end


def augment() -> T.Compose:
    return T.Compose(
        [
            T.RandomResizedCrop(24),
            T.RandomHorizontalFlip(),
            T.ColorJitter(0.4, 0.4, 0.4),
            T.Normalize((0.5,) * 3, (0.25,) * 3),
        ]
    )


class Images(Dataset):
    """Noise, which differs everywhere; each sample comes with its number."""

    def __len__(self) -> int:
        return RANKS * BATCH * PER_EPOCH

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        random = torch.Generator().manual_seed(number)
        return torch.randint(0, 256, (3, SIZE, SIZE), dtype=torch.uint8, generator=random), number


class HostAugmented:
    """A collate function that augments as fastload does, by the CPU's reference; in one process, batch after batch."""

    def __init__(self, sampler: DistributedSampler):
        self.sampler = sampler
        self.batches = 0
        self.transform = augment()

    def __call__(self, samples: list[Any]) -> Any:
        images, numbers = default_collate(samples)
        epoch, number = divmod(self.batches, PER_EPOCH)
        self.batches += 1
        first = number * BATCH * RANKS + self.sampler.rank
        return self.transform(images, T.Key(0, epoch, place=first, stride=RANKS)), numbers


class Network(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, stride=2),
            torch.nn.Tanh(),  # smooth: a ReLU's gradient jumps where a rounding moves its input across 0
            torch.nn.Conv2d(8, 16, 3, stride=2),
            torch.nn.Tanh(),
            torch.nn.Flatten(),
            torch.nn.LazyLinear(CLASSES),
        )
        self.model(torch.zeros(1, 3, 24, 24))
        self.numbers: list[list[int]] = []
        self.losses: list[float] = []

    def training_step(self, batch: Any) -> torch.Tensor:
        images, numbers = batch
        loss = torch.nn.functional.cross_entropy(self.model(images), numbers % CLASSES)
        self.numbers.append(numbers.tolist())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.02)


def main(device: str, home: str) -> None:
    """One rank, started as torchrun would: a run with fastload's loader, and one with Lightning's own."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    rank = int(os.environ["RANK"])
    runs = [train(device, home, rank, own=own) for own in (False, True)]
    (Path(home) / f"{rank}.pickle").write_bytes(pickle.dumps(runs))
    torch.distributed.destroy_process_group()


def train(device: str, home: str, rank: int, *, own: bool) -> Run:
    """Return what a rank saw of its run."""
    seed_everything(0, verbose=False)
    data = Images()
    sampler = DistributedSampler(data, RANKS, rank)
    batches = DataLoader(data, BATCH, sampler=sampler, collate_fn=HostAugmented(sampler) if own else None)
    network = Network()
    Trainer(
        accelerator=device,
        devices=RANKS,
        strategy="ddp",
        max_steps=STEPS,
        deterministic=True,
        callbacks=[] if own else [Prefetch(train=augment())],
        default_root_dir=home,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(network, batches)
    weights = torch.cat([each.detach().cpu().flatten() for each in network.parameters()])
    return network.numbers, network.losses, weights


def run(device: str, home: Path) -> list[list[Run]]:
    """Return each rank's two runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in map(str, range(RANKS)):
        where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
        command = [sys.executable, "-m", "tests.integrations.test_gpu_lightning", device, str(home)]
        environment = os.environ | where | {"MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        ranks.append(subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[2]))
    try:
        assert [each.wait(timeout=400) for each in ranks] == [0] * RANKS
    finally:
        for each in ranks:
            each.kill()
    return [pickle.loads((home / f"{rank}.pickle").read_bytes()) for rank in range(RANKS)]


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu(RANKS))])
def test_fifty_steps_are_those_of_lightnings_own_loader(device, tmp_path):
    """On the CPU, where both run the reference, values are equal.

    On a GPU pixels differ by rounding: kernel and reference agree to 2^-24 of values up to 4, relative to a spread of
    1, times the few operations of the chain: 1e-6. A step moves a weight by 0.02 times a gradient that is off in the
    same proportion, so 50 steps, each passing on the errors before it, stay below 50 * 50 / 2 times 1e-6 * 0.02 * 4,
    which is 1e-4; losses, with gradients of norm near 1, below ten times that. The first
    loss knows no error of weights.
    """
    ranks = run(device, tmp_path)
    for (numbers, losses, weights), (wanted, wanted_losses, wanted_weights) in ranks:
        assert numbers == wanted
        assert len(numbers) == STEPS
        tolerance = 0 if device == "cpu" else 1e-4
        torch.testing.assert_close(losses[0], wanted_losses[0], rtol=0, atol=tolerance / 10)
        torch.testing.assert_close(weights, wanted_weights, rtol=0, atol=tolerance)
        torch.testing.assert_close(losses, wanted_losses, rtol=0, atol=10 * tolerance)
    (first, _), (second, _) = ranks
    assert first[2].equal(second[2])  # the ranks' weights
    assert first[0] != second[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
