"""Ranks of ``TrainStep`` in processes of their own, and the one process that they should equal.

All compute in float64. Ranks add up in another order than one process, and differ from it by roundings: of 1e-16 there,
which ten small batches leave far below 1e-10. To divide the last window by 4 rather than 2 makes 3e-3.
"""

import multiprocessing
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from fastload.training.step import TrainStep
from tests.lives import be_born, forked, run_ranks

BATCHES, BATCH = 10, 8  # with windows of 4, the last is of 2
TOLERANCE = {"rtol": 0, "atol": 1e-10}
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def make_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(BATCH, 6, generator=generator).double(), torch.randint(0, 3, (BATCH,), generator=generator))
        for _ in range(BATCHES)
    ]


def make_step(model: nn.Module, **settings) -> TrainStep:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return TrainStep(
        model, optimizer, nn.CrossEntropyLoss(), precision="fp32", accumulate=4, max_norm=0.5, ema=0.9, **settings
    )


def train(step: TrainStep, batches, loop: str) -> None:
    """Loop by ``step.epoch``, or over the batches with ``flush``, or with the number of items of each batch."""
    if loop == "items":
        for images, labels in step.epoch(batches):
            step(images, labels, items=(labels >= 0).sum())
    elif loop == "epoch":
        for images, labels in step.epoch(batches):
            step(images, labels)
    else:
        for images, labels in batches:
            step(images, labels)
        step.flush()


def padded(batches):
    """Labels of which some are padding, more of them in the first half, which is one rank's."""
    batches = [(images, labels.clone()) for images, labels in batches]
    for number, (_, labels) in enumerate(batches):
        labels[: 1 + number % 3] = -100
    return batches


class Counting(TorchDispatchMode):
    """Notes what FSDP2 reduces; CommDebugMode also follows modules, and some releases fail at that on a GPU."""

    def __init__(self, reductions: list[int]) -> None:
        super().__init__()
        self.reductions = reductions

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "reduce_scatter" in func.name():
            self.reductions.append(1)
        return func(*args, **(kwargs or {}))


def train_as_rank(
    rank: int, home: Path, device_type: str, wrapper: str, loop: str, spoilt: int | None, on_nonfinite: str
) -> None:
    be_born()
    device = torch.device(device_type, rank if device_type == "cuda" else None)
    if device_type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(BACKENDS[device_type], f"file://{home / 'store'}", rank=rank, world_size=2)
    batches = padded(make_batches()) if loop == "items" else make_batches()
    mine = [tuple(part.chunk(2)[rank].to(device) for part in batch) for batch in batches]
    if spoilt is not None and rank == 1:
        mine[spoilt][0].fill_(torch.nan)
    reductions: list[int] = []
    model = make_model().to(device)
    if wrapper == "ddp":
        model = DistributedDataParallel(model)

        def hook(group, bucket):
            reductions.append(1)
            return allreduce_hook(group, bucket)

        model.register_comm_hook(None, hook)
    else:
        fully_shard(model, mesh=init_device_mesh(device_type, (2,)))
    step = make_step(model, on_nonfinite=on_nonfinite)
    told = ""
    with Counting(reductions):
        try:
            train(step, mine, loop)
        except FloatingPointError as error:
            told = str(error)
    if wrapper == "fsdp":
        weights = {name: weight.full_tensor() for name, weight in model.state_dict().items()}
        averages = {name: weight.full_tensor() for name, weight in step.ema.state_dict().items()}
    else:
        weights, averages = model.module.state_dict(), step.ema.state_dict()
    averages = {name.removeprefix("module."): average for name, average in averages.items()}
    torch.save(
        {"weights": weights, "ema": averages, "reductions": len(reductions), "updates": step.updates, "told": told},
        home / f"{rank}.pt",
    )
    distributed.destroy_process_group()


def train_as_two_ranks(
    home: Path, device_type: str, wrapper: str, loop: str, spoilt: int | None = None, on_nonfinite: str = "raise"
) -> list[dict]:
    # Forked ones are faster, but CUDA cannot be used in a fork of a process that has asked for its devices.
    context = forked if device_type == "cpu" else multiprocessing.get_context("spawn")
    run_ranks(train_as_rank, home, device_type, wrapper, loop, spoilt, on_nonfinite, context=context)
    return [torch.load(home / f"{rank}.pt", map_location="cpu") for rank in range(2)]


def train_alone(loop: str, without: range = range(0)) -> dict:
    """Train one process on the CPU with the same global batches."""
    batches = padded(make_batches()) if loop == "items" else make_batches()
    batches = [batch for number, batch in enumerate(batches) if number not in without]
    model = make_model()
    step = make_step(model)
    train(step, batches, loop)
    return {"weights": model.state_dict(), "ema": step.ema.state_dict(), "updates": step.updates}
