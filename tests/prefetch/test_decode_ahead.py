"""A second thread helps to decode while few batches are ready."""

import time

import pytest
import torch
from torch.utils.data import Dataset

import fastload as fl
from fastload import transforms as T
from fastload.decode import device as decoding
from fastload.decode.engines import WORTH_TWO
from fastload.prefetch.decode_ahead import DecodeStage
from fastload.prefetch.item import Item
from fastload.prefetch.pace import Pace
from fastload.prefetch.slots import IN_HAND
from fastload.stats.batch_times import BatchTimes, Span
from fastload.structure.tree import tree_flatten
from tests.files import jpeg

CPU = torch.device("cpu")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DEPTH = 3


class Training:
    """A thread that decodes, and training, on a clock of their own: up to ``depth`` batches wait for training."""

    def __init__(self, step, alone, helped, depth=3):
        self.pace, self.had_room = Pace(), True
        self.step, self.alone, self.helped = step, alone, helped
        self.done = self.asked = self.taken = 0.0  # asked: when the slot was, for the last batch
        self.ends = [0.0] * (depth + IN_HAND)  # of training's steps
        self.is_helped = []
        self.waited = 0.0  # training, for batches

    def batch(self, slower=1.0):
        begin = self.taken + self.pace.rest(Span(self.done, self.taken), self.taken)
        self.is_helped.append(self.had_room)
        self.done = begin + slower * (self.helped if self.had_room else self.alone)
        is_free = self.ends.pop(0)
        self.had_room = is_free <= self.asked
        self.asked = self.taken = max(self.done, is_free)
        self.waited += max(0.0, self.taken - self.ends[-1])
        self.ends.append(max(self.taken, self.ends[-1]) + self.step)

    def batches(self, count):
        """Return seconds a step and the share of the batches that were helped with."""
        start, begun = self.ends[-1], len(self.is_helped)
        for _ in range(count):
            self.batch()
        return (self.ends[-1] - start) / count, sum(self.is_helped[begun:]) / count


@pytest.mark.parametrize("work", [0.3, 0.6, 0.9, 0.97, 0.99])
def test_help_fills_the_queue_and_goes(work):
    """At the begin of a pass, and after a slow moment."""
    training = Training(step=1.0, alone=work, helped=0.75 * work)
    assert 0 < training.batches(30)[1] < 0.5
    assert training.batches(100) == (pytest.approx(1.0), 0.0)
    training.waited = 0.0
    for _ in range(5):
        training.batch(slower=3 / work)  # for three steps
        assert 0 < training.batches(20)[1] < 0.5
        assert training.is_helped[-1] is False
    assert training.waited == 0


@pytest.mark.parametrize(
    ("step", "takes", "least", "most"),
    [(1, 7.0, 1.0, 1.0), (7, 7.0, 1.0, 1.0), (8, 8.0, 0.6, 0.8), (9.5, 9.5, 0.1, 0.3), (10.5, 10.5, 0, 0)],
)
def test_help_comes_as_often_as_training_needs_it(step, takes, least, most):
    training = Training(step, alone=10, helped=7)
    training.batches(100)
    training.waited = 0.0
    step_takes, share = training.batches(400)
    assert step_takes == pytest.approx(takes, rel=0.02)
    assert least <= share <= most
    assert (training.waited < step) == (step >= 7)


class Files(Dataset):
    """Square files."""

    def __init__(self, count, side):
        self.files = [jpeg(side, side, seed=seed) for seed in range(WORTH_TWO)]
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.files[index % WORTH_TWO], index


class Ready:
    """A loader that need not load: every batch is all of the files."""

    yields_fresh_batches = True

    def __init__(self, files, batches):
        self.batches = [fl.collate([files[index] for index in range(len(files))])] * batches

    def __iter__(self):
        return iter(self.batches)


def prefetched(device, batches, **options):
    transform = T.Compose([T.DecodeJpeg(), T.Resize((32, 32)), T.Normalize((0.5,) * 3, (0.5,) * 3)])
    return fl.PrefetchLoader(batches, transform=transform, device=device, depth=DEPTH, **options)


@pytest.fixture
def helped(monkeypatch):
    """Whether another thread helped to decode, for each batch."""
    helped = []

    def noted(files, device, helper, decode=decoding.decode):
        helped.append(helper.is_needed)
        return decode(files, device, helper)

    monkeypatch.setattr("fastload.transforms.decode.decode", noted)
    return helped


@pytest.mark.parametrize("are_few", [False, True])
def test_a_thread_helps_while_there_are_few_batches(are_few, helped):
    stage = DecodeStage(T.DecodeJpeg(), CPU)
    item = Item(tree_flatten(fl.collate([jpeg()])), None, BatchTimes(0, CPU))
    stage.pin(item)
    stage.decode(item, lambda: are_few)
    assert helped == [are_few]
    stage.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        stage._helper.submit(print)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("static", [False, True])
def test_no_batch_gets_help_while_others_wait_for_training(static, device, helped):
    one_pass = iter(prefetched(device, Ready(Files(WORTH_TWO, side=64), batches=20), static=static))
    for _ in range(10):
        give_up = time.monotonic() + 30
        while len(one_pass._items) < DEPTH:
            assert time.monotonic() < give_up
            time.sleep(0.001)
        next(one_pass)
    one_pass.close()
    assert helped[:10] == [True, True] + [False] * 8  # the first two are decoded before any can wait


@pytest.mark.gpu
@pytest.mark.parametrize("static", [False, True])
def test_batches_get_help_where_the_device_has_room_for_them(static, helped):
    for images, _ in prefetched("cuda", Ready(Files(256, side=192), batches=60), static=static):
        images.sum()
    assert len(helped) == 60
    assert any(helped[10:])
