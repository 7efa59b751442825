"""Lightning's Fabric: a ``PrefetchLoader`` around what ``setup_dataloaders`` returns, on two ranks."""

from __future__ import annotations

import logging
import os

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, DistributedSampler

from tests.integrations.contract import ACCUMULATE, BATCH, Contract, Model, Numbered, Record, Scenario, wrap

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
