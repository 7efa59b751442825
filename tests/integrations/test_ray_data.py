"""Ray Data: ``iter_torch_batches``, whose columns ``fl.collate`` takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray
from ray.data.collate_fn import NumpyBatchCollateFn

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
from tests.integrations.source_loop import jpeg, train


class PackFiles(NumpyBatchCollateFn):
    def __call__(self, columns: Any) -> Any:
        return fl.collate(columns, images="image")


class Unreadable:
    """Fails in a batch with a sample from ``first_bad`` on."""

    def __init__(self, first_bad: int | None):
        self.first_bad = first_bad

    def __call__(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self.first_bad is not None and columns["label"].max() >= self.first_bad:
            raise UnreadableError(f"sample {columns['label'].max()}")
        return columns


class Collate(PackFiles):
    def __init__(self, check: Unreadable):
        super().__init__()
        self.check = check

    def __call__(self, columns: Any) -> Any:
        return super().__call__(self.check(columns))


class Passes:
    """A Ray data set's batches, an iterator for each pass, in the order of a seed that the epoch is added to."""

    def __init__(self, data: ray.data.Dataset, scenario: Scenario):
        self.data, self.scenario, self.epoch = data, scenario, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        shuffle = {}
        if self.scenario.shuffle:
            shuffle = {"local_shuffle_buffer_size": SAMPLES, "local_shuffle_seed": self.epoch}
        collate = Collate(Unreadable(self.scenario.first_bad))
        batches = self.data.iter_torch_batches(batch_size=BATCH, collate_fn=collate, prefetch_batches=0, **shuffle)
        self.epoch += 1
        return iter(batches)


class TestRayData(Contract):
    subject, library = "Ray Data", "ray"

    @staticmethod
    def train(scenario: Scenario, record: Record) -> None:
        if not ray.is_initialized():
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _system_config={"worker_niceness": 0})
            ray.data.DataContext.get_current().enable_progress_bars = False
            ray.data.DataContext.get_current().execution_options.preserve_order = True
        data = ray.data.from_items([{"image": jpeg(), "label": number} for number in range(SAMPLES)]).materialize()
        train(scenario, record, wrap(Passes(data, scenario), scenario, transform=decoding_transform()))
