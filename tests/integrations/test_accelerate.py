"""Accelerate: ``PrefetchLoader`` around a prepared loader, inside ``prepare`` by the adapter, over the dispatcher."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import accelerate
import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, IterableDataset

import fastload as fl
from fastload.integrations.accelerate import prepare, skip_first_batches
from tests.integrations.contract import (
    ACCUMULATE,
    BATCH,
    EPOCHS,
    SAMPLES,
    Contract,
    Model,
    Numbered,
    Record,
    Scenario,
    transform,
    wrap,
)


class Accelerated(Contract):
    """How Accelerate's users train: ``accumulate``, ``gather_for_metrics``, ``save_state``."""

    library = "accelerate"
    settings: ClassVar[dict[str, Any]] = {"use_seedable_sampler": True, "data_seed": 0}

    @classmethod
    def load(cls, accelerator: Accelerator, plain: DataLoader, scenario: Scenario) -> Any:
        raise NotImplementedError

    @classmethod
    def data(cls, scenario: Scenario) -> DataLoader:
        return DataLoader(Numbered(scenario.first_bad), BATCH, shuffle=scenario.shuffle, num_workers=1)

    @classmethod
    def save(cls, _accelerator: Accelerator, loader: Any, _scenario: Scenario) -> Any:
        return loader.state_dict()

    @classmethod
    def resume(cls, _accelerator: Accelerator, loader: Any, state: Any) -> int:
        """The epoch to go on with."""
        loader.load_state_dict(state)
        return loader.epoch

    @classmethod
    def train(cls, scenario: Scenario, record: Record) -> None:
        accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=ACCUMULATE,
            dataloader_config=DataLoaderConfiguration(**cls.settings),
        )
        loader = cls.load(accelerator, cls.data(scenario), scenario)
        model = Model()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        first = 0 if scenario.resume is None else cls.resume(accelerator, loader, scenario.resume)
        for epoch in range(first, scenario.epochs):
            loader.set_epoch(epoch)
            record.begin_epoch()
            counted = 0
            for images, labels in loader:
                record.saw(images.float() if scenario.wrapped else images, labels)
                with accelerator.accumulate(model):
                    accelerator.backward(torch.nn.functional.cross_entropy(model(images.float()), labels))
                    optimizer.step()
                    optimizer.zero_grad()
                    if accelerator.sync_gradients:
                        record.updated()
                counted += len(accelerator.gather_for_metrics(labels))
                if len(record.epochs[-1]) == scenario.save_after:
                    record.state = cls.save(accelerator, loader, scenario)
                    return
                if len(record.epochs[-1]) == scenario.leave_after and epoch == 0:
                    break
            record.counted.append(counted)


class TestOutside(Accelerated):
    subject, ranks = "Accelerate, outside", 2

    @classmethod
    def load(cls, accelerator, plain, scenario):
        return wrap(accelerator.prepare(plain), scenario)


class TestInside(Accelerated):
    subject, ranks = "Accelerate, inside by the adapter", 2

    @classmethod
    def load(cls, accelerator, plain, scenario):
        loader = prepare(accelerator, wrap(plain, scenario))
        if scenario.wrapped:
            accelerator.register_for_checkpointing(loader)
        return loader

    @classmethod
    def save(cls, accelerator, _loader, scenario):
        accelerator.save_state(str(scenario.home), safe_serialization=False)
        return str(scenario.home)

    @classmethod
    def resume(cls, accelerator, loader, state):
        accelerator.load_state(state)
        return loader.epoch


class Stream(IterableDataset):
    """Those of ``Numbered``, one after the other, in another order each epoch."""

    def __init__(self, first_bad: int | None, shuffle: bool):
        self.samples = Numbered(first_bad)
        self.shuffle = shuffle
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch))
        yield from (self.samples[number] for number in (order.tolist() if self.shuffle else range(SAMPLES)))


class TestIterable(Accelerated):
    """Each rank reads all and keeps its own part, as Accelerate does with ``dispatch_batches=False``."""

    subject, ranks = "Accelerate, iterable", 2
    settings: ClassVar[dict[str, Any]] = {"dispatch_batches": False}

    @classmethod
    def data(cls, scenario):
        return DataLoader(Stream(scenario.first_bad, scenario.shuffle), BATCH)

    @classmethod
    def load(cls, accelerator, plain, scenario):
        return wrap(accelerator.prepare(plain), scenario)

    def test_08_metrics_count_each_sample_once(self, records):
        """Of an iterable data set Accelerate counts the samples that fill up the last batches, with us or without."""
        for rank in records:
            assert rank["first"].counted == rank["own"].counted
            assert min(rank["first"].counted) >= SAMPLES


class TestDispatcher(TestIterable):
    """On one rank, where an iterable data set gets Accelerate's dispatcher too."""

    subject, ranks = "Accelerate, dispatcher on one rank", 1
    settings: ClassVar[dict[str, Any]] = {"dispatch_batches": True}
    test_08_metrics_count_each_sample_once = Contract.test_08_metrics_count_each_sample_once  # it fills up none


# Beside the contract


def numbers(loader: Any) -> list[list[int]]:
    return [labels.tolist() for _, labels in loader]


@pytest.fixture
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_last_batch_is_known_while_it_is_held(accelerator, depth, static, workers):
    plain = accelerator.prepare(DataLoader(Numbered(), BATCH, num_workers=workers))
    loader = fl.PrefetchLoader(plain, device="cpu", depth=depth, static=static, transform=transform())
    for _ in range(2):
        ends = [accelerator.gradient_state.end_of_dataloader for _ in loader]
        assert ends == [False] * 9 + [True]
        assert not accelerator.gradient_state.in_dataloader
    assert plain.iteration == EPOCHS


def test_a_loader_inside_that_skips_stays_right(accelerator):
    plain = accelerator.prepare(DataLoader(Numbered(), BATCH))
    skipping = accelerate.skip_first_batches(plain, 7)
    assert numbers(fl.PrefetchLoader(skipping, device="cpu")) == numbers(plain)[7:]
    stream = accelerator.prepare(DataLoader(Stream(None, shuffle=False), BATCH))
    skipping = accelerate.skip_first_batches(stream, 7)
    assert numbers(fl.PrefetchLoader(skipping, device="cpu")) == numbers(plain)[7:]


def test_skipping_costs_no_reading(accelerator):
    class Read(Numbered):
        read: ClassVar[list[int]] = []

        def __getitem__(self, number):
            self.read.append(number)
            return super().__getitem__(number)

    loader = prepare(accelerator, fl.PrefetchLoader(DataLoader(Read(), BATCH), device="cpu"))
    assert numbers(skip_first_batches(loader, 8)) == [[32, 33, 34, 35], [36, 37]]
    assert Read.read == list(range(32, SAMPLES))
    assert len(numbers(loader)) == 10


@pytest.mark.parametrize("stop", [1, 4, 10])
def test_the_own_state_of_a_stateful_loader_is_that_of_the_consumer(stop):
    pytest.importorskip("torchdata.stateful_dataloader")
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
    plain = accelerator.prepare(DataLoader(Numbered(), BATCH))
    for _, _batch in zip(range(stop), fl.PrefetchLoader(plain, device="cpu"), strict=False):
        state = plain.state_dict()
    other = accelerator.prepare(DataLoader(Numbered(), BATCH))
    other.load_state_dict(state)
    rest = [list(range(first, min(first + BATCH, SAMPLES))) for first in range(stop * BATCH, SAMPLES, BATCH)]
    assert numbers(other) == (rest or numbers(plain))


def test_devices_must_agree():
    elsewhere = SimpleNamespace(device=torch.device("cuda:1"))
    with pytest.raises(ValueError, match="made for cpu, and the accelerator for cuda:1"):
        prepare(elsewhere, fl.PrefetchLoader([torch.zeros(1)], device="cpu"))


@pytest.mark.parametrize("seedable", [False, True])
def test_a_pass_that_skips_has_the_pixels_of_a_whole_one(seedable):
    config = DataLoaderConfiguration(use_seedable_sampler=seedable, data_seed=0)
    accelerator = Accelerator(cpu=True, dataloader_config=config)

    def epochs(skip: int) -> list[list[torch.Tensor]]:
        torch.manual_seed(0)
        plain = DataLoader(Numbered(), BATCH, shuffle=True)
        loader = prepare(accelerator, fl.PrefetchLoader(plain, transform=transform(), device="cpu"))
        first = [torch.cat([images.flatten(), labels]) for images, labels in skip_first_batches(loader, skip)]
        return [first, [torch.cat([images.flatten(), labels]) for images, labels in loader]]

    whole, skipping = epochs(0), epochs(4)
    for one, other in zip([whole[0][4:], whole[1]], skipping, strict=True):
        assert all(map(torch.equal, one, other))
        assert len(one) == len(other)


def test_others_pass_through(accelerator):
    model = torch.nn.Linear(1, 1)
    assert prepare(accelerator, model) is model
    assert skip_first_batches(DataLoader(range(8), 4), 1).batch_sampler.skip_batches == 1


def refuse_the_dispatcher() -> None:
    accelerator = Accelerator(cpu=True)
    stream = DataLoader(Stream(None, shuffle=False), BATCH)
    with pytest.raises(ValueError, match=r"DataLoaderConfiguration\(dispatch_batches=False\)"):
        fl.PrefetchLoader(accelerator.prepare(stream), device="cpu")
    with pytest.raises(ValueError, match=r"DataLoaderConfiguration\(dispatch_batches=False\)"):
        prepare(accelerator, fl.PrefetchLoader(stream, device="cpu"))


def test_a_dispatcher_of_several_ranks_is_refused_at_once():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", __name__]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]


if __name__ == "__main__":
    refuse_the_dispatcher()
    torch.distributed.destroy_process_group()
