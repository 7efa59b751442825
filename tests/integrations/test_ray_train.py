"""Ray Train: ``PrefetchLoader`` inside ``prepare_data_loader`` by the adapter, and around what Ray prepared."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.train
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader

import fastload as fl
from fastload.integrations.ray import prepare_data_loader
from tests.integrations import rank
from tests.integrations.contract import ACCUMULATE, BATCH, Contract, Model, Numbered, Record, Scenario, transform, wrap

HERE = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Where two workers of a ``TorchTrainer`` have left what they saw: Ray starts them once for all subjects."""
    home = tmp_path_factory.mktemp("ranks")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _system_config={"worker_niceness": 0},  # by default the tests beside these leave Ray's workers no processor
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}},
    )
    try:
        TorchTrainer(
            work,
            train_loop_config={"home": str(home)},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(name="run", storage_path=str(home)),
        ).fit()
    finally:
        ray.shutdown()
    return home


def work(config: dict[str, str]) -> None:
    """What each worker does."""
    number = str(ray.train.get_context().get_world_rank())
    home = Path(config["home"])
    (home / f"said_by_{number}.pickle").write_bytes(pickle.dumps(what_is_said()))
    for subject in (TestInside, TestOutside):
        (home / subject.__name__).mkdir(exist_ok=True)
        rank.main(subject.__module__, subject.__name__, str(home / subject.__name__), number)


@pytest.fixture(scope="class")
def records(request, home) -> list[dict[str, Record]]:
    """What each worker of a subject saw, by scenario."""
    files = [home / request.cls.__name__ / f"{number}.pickle" for number in range(request.cls.ranks)]
    return [pickle.loads(file.read_bytes()) for file in files]


def what_is_said() -> dict[str, str]:
    """What a user is told who gives Ray a ``PrefetchLoader``, or does not prepare it at all."""
    loader = fl.PrefetchLoader(DataLoader(Numbered(), BATCH), transform=transform(), device="cpu")
    with pytest.raises(RuntimeError) as bare:
        next(iter(ray.train.torch.prepare_data_loader(loader)))
    with pytest.warns(UserWarning, match="all samples") as unprepared:
        list(loader)
    with pytest.raises(TypeError) as plain:
        prepare_data_loader(loader.loader)
    return {
        "bare": str(bare.value),
        "unprepared": str(unprepared[0].message),
        "plain": str(plain.value),
    }


class InRay(Contract):
    library, ranks = "ray", 2

    @staticmethod
    def load(plain: DataLoader, scenario: Scenario) -> Any:
        raise NotImplementedError

    @classmethod
    def train(cls, scenario: Scenario, record: Record) -> None:
        plain = DataLoader(Numbered(scenario.first_bad), BATCH, shuffle=scenario.shuffle, num_workers=1)
        loader = cls.load(plain, scenario)
        model = ray.train.torch.prepare_model(Model())
        step = fl.TrainStep(
            model, torch.optim.SGD(model.parameters(), 0.1), torch.nn.CrossEntropyLoss(), accumulate=ACCUMULATE
        )
        first = 0
        if scenario.resume is not None:
            loader.load_state_dict(scenario.resume)
            first = loader.epoch
        for epoch in range(first, scenario.epochs):
            record.begin_epoch()
            (loader if scenario.wrapped else loader.sampler).set_epoch(epoch)
            counted = torch.zeros(())
            for images, labels in step.epoch(loader):
                record.saw(images.float(), labels)
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


class TestInside(InRay):
    subject = "Ray Train, inside by the adapter"

    @staticmethod
    def load(plain, scenario):
        loader = wrap(plain, scenario)
        return prepare_data_loader(loader) if scenario.wrapped else ray.train.torch.prepare_data_loader(loader)


class TestOutside(InRay):
    subject = "Ray Train, outside"

    @staticmethod
    def load(plain, scenario):
        return wrap(ray.train.torch.prepare_data_loader(plain, move_to_device=False), scenario)


@pytest.mark.parametrize(
    ("mistake", "remedy"),
    [
        ("bare", "fastload.integrations.ray.prepare_data_loader(loader)"),
        ("unprepared", "fastload.integrations.ray.prepare_data_loader(fl.PrefetchLoader(dataloader, ...))"),
        ("plain", "ray.train.torch.prepare_data_loader"),
    ],
)
def test_a_loader_in_the_wrong_place_is_told_the_right_line(home, mistake, remedy):
    for number in range(2):
        assert remedy in pickle.loads((home / f"said_by_{number}.pickle").read_bytes())[mistake]
