"""Lightning's Fabric: a ``PrefetchLoader`` around what ``setup_dataloaders`` returns, on two ranks."""

from __future__ import annotations

import logging
import os

import pytest
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, DistributedSampler

import fastload as fl
from tests.integrations.contract import (
    ACCUMULATE,
    BATCH,
    Contract,
    Model,
    Numbered,
    Record,
    Scenario,
    transform,
    wrap,
)

logging.getLogger("lightning.fabric").setLevel(logging.ERROR)


class TestFabric(Contract):
    subject, library, ranks = "Fabric", "lightning", 2

    @staticmethod
    def train(scenario: Scenario, record: Record) -> None:
        fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        data = Numbered(scenario.first_bad)
        model = Model()
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
        sampler = None if scenario.shuffle else DistributedSampler(data, 2, int(os.environ["RANK"]), shuffle=False)
        plain = DataLoader(data, BATCH, shuffle=scenario.shuffle, sampler=sampler, num_workers=1)
        loader = wrap(fabric.setup_dataloaders(plain, move_to_device=False), scenario)
        first = 0
        if scenario.resume is not None:
            loader.load_state_dict(scenario.resume)
            first = loader.epoch
        for epoch in range(first, scenario.epochs):
            record.begin_epoch()
            counted = torch.zeros(())
            for number, (images, labels) in enumerate(loader, loader.resumed_at if scenario.wrapped else 0):
                record.saw(images.float(), labels)
                is_update = (number + 1) % ACCUMULATE == 0 or number + 1 == len(loader)
                with fabric.no_backward_sync(model, enabled=not is_update):
                    fabric.backward(torch.nn.functional.cross_entropy(model(images.float()), labels))
                if is_update:
                    optimizer.step()
                    optimizer.zero_grad()
                    record.updated()
                counted += len(labels)
                if len(record.epochs[-1]) == scenario.save_after:
                    record.state = loader.state_dict()
                    return
                if len(record.epochs[-1]) == scenario.leave_after and epoch == 0:
                    break
            record.counted.append(int(fabric.all_reduce(counted, reduce_op="sum")))


def prepared(move_to_device: bool = False) -> fl.PrefetchLoader:
    data = Numbered()
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, num_replicas=1, rank=0))
    fabric = Fabric(accelerator="cpu", devices=1)
    return fl.PrefetchLoader(
        fabric.setup_dataloaders(loader, move_to_device=move_to_device), transform=transform(), device="cpu"
    )


def batches(loader: fl.PrefetchLoader) -> list[tuple[list[int], float]]:
    return [(labels.tolist(), images.sum().item()) for images, labels in loader]


@pytest.mark.parametrize("says_epoch", [False, True])
def test_a_later_epoch_resumes(says_epoch):
    """Fabric counts passes to set the sampler's epoch: a resumed run's first pass is not epoch 0."""
    uninterrupted = prepared()
    epochs = [batches(uninterrupted) for _ in range(3)]
    saved = prepared()
    batches(saved)
    half = iter(saved)
    before = [next(half) for _ in range(4)]
    resumed = prepared()
    resumed.load_state_dict(saved.state_dict())
    half.close()
    for epoch in range(resumed.epoch, 3):
        if says_epoch:
            resumed.set_epoch(epoch)
        assert batches(resumed) == epochs[epoch][len(before) if epoch == 1 else 0 :]


def test_set_epoch_decides_order_and_augmentations():
    counting, told = prepared(), prepared()
    epochs = [batches(counting) for _ in range(3)]
    told.set_epoch(2)
    assert batches(told) == epochs[2]


def test_batches_that_fabric_moves_are_the_same():
    assert batches(prepared(move_to_device=True)) == batches(prepared())
