"""Hugging Face ``datasets``: in random access and as a stream, both shared over two ranks, with files undecoded."""

from __future__ import annotations

from functools import partial
from typing import Any

import datasets
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, DistributedSampler

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

RANKS = 2
PACK = partial(fl.collate, images="image")


def files() -> datasets.Dataset:
    columns = {"image": [{"bytes": jpeg(), "path": None}] * SAMPLES, "label": list(range(SAMPLES))}
    return datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image(decode=False))


def readable(rows: dict[str, Any], first_bad: int) -> dict[str, Any]:
    if max(rows["label"]) >= first_bad:
        raise UnreadableError(f"sample {max(rows['label'])}")
    return rows


class TestMap(Contract):
    subject, library, ranks = "Hugging Face, random access", "datasets", RANKS

    @staticmethod
    def train(scenario: Scenario, record: Record) -> None:
        data = files()
        if scenario.first_bad is not None:
            data = data.with_transform(partial(readable, first_bad=scenario.first_bad))
        sampler = DistributedSampler(data, RANKS, join_ranks(), shuffle=scenario.shuffle)
        loader = DataLoader(data, BATCH, sampler=sampler, num_workers=1, collate_fn=PACK)
        train(scenario, record, wrap(loader, scenario, transform=decoding_transform()), sampler.set_epoch)


class TestStream(Contract):
    subject, library, ranks = "Hugging Face, stream", "datasets", RANKS

    @staticmethod
    def train(scenario: Scenario, record: Record) -> None:
        data = files().to_iterable_dataset(num_shards=RANKS)
        if scenario.shuffle:
            data = data.shuffle(seed=0, buffer_size=16)
        if scenario.first_bad is not None:
            data = data.map(partial(readable, first_bad=scenario.first_bad), batched=True, batch_size=1)
        data = split_dataset_by_node(data, join_ranks(), RANKS)
        loader = DataLoader(data, BATCH, num_workers=1, collate_fn=PACK)
        train(scenario, record, wrap(loader, scenario, transform=decoding_transform()), data.set_epoch)
