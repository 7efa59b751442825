"""torchdata's ``StatefulDataLoader`` on two ranks: it resumes by its own state."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.integrations.contract import BATCH, Contract, Numbered, Record, Scenario, wrap
from tests.integrations.source_loop import join_ranks, train


class Named(Numbered):
    def __getitem__(self, number: int) -> dict[str, Any]:
        image, label = super().__getitem__(number)
        return {"image": image, "label": label}


class TestStatefulDataLoader(Contract):
    subject, library, ranks = "torchdata StatefulDataLoader", "torchdata", 2

    @staticmethod
    def train(scenario: Scenario, record: Record) -> None:
        data = Named(scenario.first_bad)
        sampler = DistributedSampler(data, 2, join_ranks(), shuffle=scenario.shuffle)
        loader = StatefulDataLoader(data, BATCH, sampler=sampler, num_workers=1)
        train(scenario, record, wrap(loader, scenario), sampler.set_epoch)
