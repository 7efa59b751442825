"""timm: ``create_loader`` with fastload's prefetcher, on two ranks, and against timm's own."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import timm.data
import torch
from PIL import Image
from timm.data.mixup import FastCollateMixup
from timm.data.random_erasing import RandomErasing

import fastload as fl
from fastload.integrations.timm import create_loader
from fastload.offload.timm import erasing
from tests.integrations.contract import (
    ACCUMULATE,
    BATCH,
    EPOCHS,
    MEAN,
    STD,
    Contract,
    Model,
    Numbered,
    Record,
    Scenario,
)
from tests.integrations.contract import seen as seen_by_all

DROPPED = 32  # samples of an epoch: timm drops the last short batch of each of two ranks in training
CPU = torch.device("cpu")


class TransformedNumbered(Numbered):
    transform: Any = None  # create_loader sets it


class TestTimm(Contract):
    subject, library, ranks = "timm", "timm", 2

    @staticmethod
    def train(scenario: Scenario, record: Record) -> None:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        create = create_loader if scenario.wrapped else timm.data.create_loader
        loader = create(
            TransformedNumbered(scenario.first_bad), 8, BATCH, is_training=scenario.shuffle, distributed=True,
            mean=MEAN, std=STD, re_prob=1.0, re_mode="pixel", num_workers=1, device=CPU,
        )  # fmt: skip
        model = torch.nn.parallel.DistributedDataParallel(Model())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        step = fl.TrainStep(model, optimizer, torch.nn.CrossEntropyLoss(), accumulate=ACCUMULATE)
        first = 0
        if scenario.resume is not None:
            loader.load_state_dict(scenario.resume)
            first = loader.epoch
        for epoch in range(first, scenario.epochs):
            record.begin_epoch()
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            counted = torch.zeros(())
            for images, labels in step.epoch(loader):
                record.saw(images, labels)
                before = step.updates
                step(images, labels)
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

    def test_01_each_sample_comes_once(self, records):
        """Those that come: timm drops the last short batch of each rank in training."""
        for epoch in range(EPOCHS):
            assert seen_by_all(records, "first", epoch) == seen_by_all(records, "own", epoch)
            assert len(set(seen_by_all(records, "first", epoch))) == DROPPED

    def test_08_metrics_count_each_sample_once(self, records):
        """Those that come: timm drops the last short batch of each rank in training."""
        for rank in records:
            assert rank["first"].counted == rank["own"].counted == [DROPPED] * EPOCHS


class Pictures(torch.utils.data.Dataset):
    """Random colour pictures of different sizes."""

    transform: Any = None

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Any, int]:
        random = np.random.default_rng(index)
        pixels = random.integers(0, 256, (40 + index, 60 - index, 3), dtype=np.uint8)
        return self.transform(Image.fromarray(pixels)), index


def loaders(**settings: Any) -> list[Any]:
    """fastload's loader and timm's."""
    common = {"num_workers": 0, "device": CPU, **settings}
    return [create(Pictures(), (3, 32, 32), 5, **common) for create in (create_loader, timm.data.create_loader)]


def test_evaluation_has_the_pixels_of_timms_loader():
    ours, theirs = loaders()
    assert len(ours) == len(theirs)
    for (images, labels), (wanted, targets) in zip(ours, theirs, strict=True):
        # (x / 255 - mean) / std and (x - 255 mean) / (255 std) differ by the rounding of four operations in float32.
        torch.testing.assert_close(images, wanted, rtol=0, atol=8 * 2**-24 * 4)
        assert labels.equal(targets)
        assert (images.dtype, images.device) == (wanted.dtype, wanted.device)


def test_other_arguments_are_timms():
    ours, _ = loaders(img_dtype=torch.bfloat16)
    images, _ = next(iter(ours))
    assert images.dtype is torch.bfloat16
    plain, _ = loaders(use_prefetcher=False)
    assert type(plain) is torch.utils.data.DataLoader


@pytest.mark.parametrize("mode", ["const", "pixel"])
def test_erasing_has_timms_statistics(mode):
    images = 4096
    theirs = RandomErasing(0.5, mode=mode, device="cpu")
    areas = [
        (erase(torch.full((images, 1, 32, 32), 9.0)) != 9.0).double().flatten(1).mean(1)
        for erase in (theirs, erasing(theirs))
    ]
    for statistic in (lambda area: (area > 0).double(), lambda area: area):
        one, two = map(statistic, areas)
        error = ((one.var() + two.var()) / images).sqrt()
        assert (one.mean() - two.mean()).abs() < 5 * error  # by chance once in two million runs


@pytest.mark.parametrize("setting", [{"re_mode": "rand"}, {"re_count": 3}, {"re_split": True}])
def test_erasing_that_fastload_does_not_do_is_refused(setting):
    with pytest.raises(ValueError, match="fastload erases one box"):
        create_loader(Pictures(), 32, 5, is_training=True, re_prob=0.5, num_workers=0, device=CPU, **setting)


def test_mixup_can_be_switched_off():
    mixup = FastCollateMixup(mixup_alpha=1.0, num_classes=12)
    loader = create_loader(Pictures(), 32, 4, is_training=True, collate_fn=mixup, num_workers=0, device=CPU)
    assert loader.mixup_enabled
    _, targets = next(iter(loader))
    assert targets.shape == (4, 12)
    loader.mixup_enabled = False
    assert mixup.mixup_enabled is False
    _, targets = next(iter(loader))
    assert (targets.max(1).values > 0.9).all()


def test_what_timms_training_script_asks_for():
    loader, _ = loaders(is_training=True)
    assert loader.mixup_enabled is False
    assert loader.sampler is loader.loader.sampler
    assert loader.dataset is loader.loader.dataset
    labels = [list(chain.from_iterable(labels.tolist() for _, labels in loader)) for _ in range(2)]
    assert labels[0] != labels[1]
