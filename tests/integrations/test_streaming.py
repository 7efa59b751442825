"""MosaicML Streaming: its own loader, whose ranks share the shards of a local folder."""

from __future__ import annotations

from typing import Any

import torch
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

import fastload as fl
from tests.integrations.contract import (
    BATCH,
    SAMPLES,
    Contract,
    Record,
    Scenario,
    UnreadableError,
    decoding_transform,
    wrap,
)
from tests.integrations.source_loop import join_ranks, jpeg, train


class Readable(StreamingDataset):
    """Samples from ``first_bad`` on cannot be read."""

    first_bad: int | None = None

    def __getitem__(self, at: Any) -> Any:
        if self.first_bad is not None and at >= self.first_bad:
            raise UnreadableError(f"sample {at}")
        return super().__getitem__(at)


class TestStreaming(Contract):
    subject, library, ranks = "MosaicML Streaming", "streaming", 2

    @staticmethod
    def train(scenario: Scenario, record: Record) -> None:
        folder = str(scenario.home / "shards")
        if join_ranks() == 0:
            with MDSWriter(out=folder, columns={"image": "bytes", "label": "int"}, size_limit=4000) as writer:
                for number in range(SAMPLES):
                    writer.write({"image": jpeg(), "label": number})
        torch.distributed.barrier()
        data = Readable(local=folder, batch_size=BATCH, shuffle=scenario.shuffle, shuffle_seed=0, num_canonical_nodes=1)
        data.first_bad = scenario.first_bad
        loader = StreamingDataLoader(data, batch_size=BATCH, num_workers=0, collate_fn=fl.collate)
        train(scenario, record, wrap(loader, scenario, transform=decoding_transform()))
