"""PyTorch alone: the contract's own proof, and what the others are compared with."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

import fastload as fl
from tests.integrations.contract import ACCUMULATE, BATCH, Contract, Model, Numbered, Record, Scenario, wrap


class TestTorch(Contract):
    subject, library, ranks = "PyTorch DDP", "torch", 2

    @staticmethod
    def train(scenario: Scenario, record: Record) -> None:
        train(scenario, record)


def train(scenario: Scenario, record: Record) -> None:
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    data = Numbered(scenario.first_bad)
    sampler = torch.utils.data.DistributedSampler(data, shuffle=scenario.shuffle)
    loader = wrap(DataLoader(data, BATCH, sampler=sampler, num_workers=1), scenario)
    model = torch.nn.parallel.DistributedDataParallel(Model())
    step = fl.TrainStep(
        model, torch.optim.SGD(model.parameters(), 0.1), torch.nn.CrossEntropyLoss(), accumulate=ACCUMULATE
    )
    first = 0
    if scenario.resume is not None:
        loader.load_state_dict(scenario.resume)
        first = loader.epoch
    for epoch in range(first, scenario.epochs):
        record.begin_epoch()
        (loader if scenario.wrapped else sampler).set_epoch(epoch)
        counted = torch.zeros(())
        for images, labels in step.epoch(loader):
            record.saw(images.float() if scenario.wrapped else images, labels)
            before = step.updates
            step(images.float(), labels)
            if step.updates > before:
                record.updated()
            counted += len(labels)
            if len(record.epochs[-1]) == scenario.save_after:
                record.state = loader.state_dict()
                return
            if len(record.epochs[-1]) == scenario.leave_after and epoch == 0:
                break
        torch.distributed.all_reduce(counted)
        record.counted.append(int(counted))
