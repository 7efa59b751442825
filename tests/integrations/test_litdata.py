"""LitData: its own loader, whose ranks share the chunks of a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import litdata
import pytest
from litdata.streaming import Cache

import fastload as fl
from tests.integrations import contract
from tests.integrations.contract import (
    BATCH,
    FIRST_BAD,
    SAMPLES,
    Contract,
    Record,
    Scenario,
    UnreadableError,
    decoding_transform,
    seen,
    wrap,
)
from tests.integrations.source_loop import join_ranks, jpeg, train


@pytest.fixture(scope="class")
def records(request, tmp_path_factory) -> list[dict[str, Record]]:
    """What each rank saw. The chunks are written before: LitData's writers would divide them among ranks."""
    home = tmp_path_factory.mktemp("ranks")
    write(home / "chunks")
    return contract.run_ranks(request.cls, home)


def write(folder: Path) -> None:
    folder.mkdir()
    cache = Cache(str(folder), chunk_size=1)
    for number in range(SAMPLES):
        cache[number] = {"image": jpeg(), "label": number}
    cache.done()
    cache.merge()


class Readable(litdata.StreamingDataset):
    """Samples from ``first_bad`` on cannot be read."""

    first_bad: int | None = None

    def __next__(self) -> Any:
        sample = super().__next__()
        if self.first_bad is not None and sample["label"] >= self.first_bad:
            raise UnreadableError(f"sample {sample['label']}")
        return sample


class TestLitData(Contract):
    subject, library, ranks = "LitData", "litdata", 2

    @staticmethod
    def train(scenario: Scenario, record: Record) -> None:
        join_ranks()
        data = Readable(str(scenario.home.parent / "chunks"), shuffle=scenario.shuffle, drop_last=False)
        data.first_bad = scenario.first_bad
        loader = litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=0, collate_fn=fl.collate)
        train(scenario, record, wrap(loader, scenario, transform=decoding_transform()))

    def test_12_an_error_comes_at_its_batch(self, records):
        """A rank has whole chunks one after another: those of rank 0 end before the first bad sample."""
        assert f"sample {FIRST_BAD}" in records[1]["bad"].error
        assert records[1]["bad"].numbers(0) == []
        assert seen(records, "bad", 0) == list(range(FIRST_BAD))
