"""A second thread helps to decode from when training waits for a batch until there is time to spare again."""

import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import fastload as fl
from fastload import transforms as T
from fastload.decode import device as decoding
from fastload.decode.engines import WORTH_TWO
from fastload.prefetch.decode_ahead import DecodeStage
from fastload.prefetch.item import Item
from fastload.prefetch.pace import Pace
from fastload.prefetch.shortage import MANY, Shortage
from fastload.prefetch.slots import IN_HAND, SlotPool
from fastload.stats.batch_times import BatchTimes, Span
from fastload.structure.tree import tree_flatten
from tests.files import jpeg

CPU = torch.device("cpu")


def noted(late):
    shortage = Shortage()
    for is_late in late:
        shortage.note(is_late=is_late)
    return shortage


IN_TIME = [False] * MANY  # whether each batch is late


@pytest.mark.parametrize(
    ("late", "is_short"), [(0, False), (1, False), (MANY - 1, False), (MANY, True), (MANY + 1, True)]
)
def test_at_first_training_is_short_where_many_batches_come_late_one_after_the_other(late, is_short):
    assert noted([False] * (MANY - 1) + [True] * late).lasts(is_pressed=True) == is_short


def test_a_batch_in_time_begins_the_count_anew():
    assert not noted([True] * (MANY - 1) + [False] + [True] * (MANY - 1)).lasts(is_pressed=True)


@pytest.mark.parametrize("before", [IN_TIME, [True, False] * MANY, [*IN_TIME, True, False]])
def test_once_many_came_in_time_it_is_short_where_one_comes_late(before):
    assert noted([*before, True]).lasts(is_pressed=True)
    assert not noted([*before, True, False]).lasts(is_pressed=True)


@pytest.mark.parametrize("late", [[True] * MANY, [*IN_TIME, True]])
def test_a_thread_with_time_to_spare_needs_no_help(late):
    assert not noted(late).lasts(is_pressed=False)


@pytest.mark.parametrize("late", [[True] * MANY, [*IN_TIME, True]])
def test_a_shortage_lasts_until_there_is_time_to_spare(late):
    shortage = noted(late)
    assert shortage.lasts(is_pressed=True)
    for _ in range(2 * MANY):
        shortage.note(is_late=False)
        assert shortage.lasts(is_pressed=True)
    assert not shortage.lasts(is_pressed=False)
    assert not shortage.lasts(is_pressed=True)


class Training:
    """A thread that decodes, and training, on a clock of their own: up to ``depth`` batches wait for training."""

    def __init__(self, step, alone, helped, depth=3):
        self.pace, self.shortage = Pace(), Shortage()
        self.step, self.alone, self.helped = step, alone, helped
        self.done = self.taken = 0.0
        self.ends = [0.0] * (depth + IN_HAND)  # of training's steps
        self.is_helped = []

    def batch(self, slower=1.0):
        begin = self.taken + self.pace.rest(Span(self.done, self.taken), self.taken)
        self.is_helped.append(self.shortage.lasts(is_pressed=self.pace.is_pressed))
        self.done = begin + slower * (self.helped if self.is_helped[-1] else self.alone)
        self.taken = max(self.done, self.ends.pop(0))
        self.shortage.note(is_late=self.taken > self.ends[-1])
        self.ends.append(max(self.taken, self.ends[-1]) + self.step)

    def batches(self, count):
        """Return seconds a step and the share of the batches that were helped with."""
        start, begun = self.ends[-1], len(self.is_helped)
        for _ in range(count):
            self.batch()
        return (self.ends[-1] - start) / count, sum(self.is_helped[begun:]) / count


@pytest.mark.parametrize("work", [0.3, 0.6, 0.8, 0.9, 0.97])
def test_to_fill_the_queue_takes_no_help(work):
    """At the begin of a pass, and after a slow moment, the thread is busy and training waits for nothing."""
    training = Training(step=1.0, alone=work, helped=0.7 * work)
    training.batches(100)
    training.batch(slower=4)  # as many steps as batches wait, and one
    assert training.batches(100) == (pytest.approx(1.0, abs=0.02), 0.0)


@pytest.mark.parametrize(
    ("step", "takes", "least", "most"),
    [(1, 7.0, 1.0, 1.0), (7, 7.0, 0.9, 1.0), (8, 8.0, 0.6, 0.8), (9.5, 9.5, 0.1, 0.3), (10.5, 10.5, 0, 0)],
)
def test_help_comes_as_often_as_training_needs_it(step, takes, least, most):
    training = Training(step, alone=10, helped=7)
    training.batches(100)
    step_takes, share = training.batches(400)
    assert step_takes == pytest.approx(takes, rel=0.02)
    assert least <= share <= most


def test_help_makes_up_for_a_slow_moment():
    training = Training(step=1.0, alone=0.97, helped=0.7)
    training.batches(100)
    training.batch(slower=8)
    _, share = training.batches(30)
    assert share > 0
    assert training.batches(100) == (pytest.approx(1.0), 0.0)


class Files(Dataset):
    """Square files, each of which takes a while to load."""

    def __init__(self, count, side, seconds=0.0):
        self.files = [jpeg(side, side, seed=seed) for seed in range(WORTH_TWO)]
        self.count, self.seconds = count, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return self.files[index % WORTH_TWO], index


class Ready:
    """A loader that need not load: every batch is all of the files."""

    yields_fresh_batches = True

    def __init__(self, files, batches):
        self.batches = [fl.collate([files[index] for index in range(len(files))])] * batches

    def __iter__(self):
        return iter(self.batches)


def prefetched(device, files, batch, workers=1, **options):
    return prefetched_batches(device, DataLoader(files, batch, num_workers=workers, collate_fn=fl.collate), **options)


def prefetched_batches(device, batches, **options):
    transform = T.Compose([T.DecodeJpeg(), T.Resize((32, 32)), T.Normalize((0.5,) * 3, (0.5,) * 3)])
    return fl.PrefetchLoader(batches, transform=transform, device=device, **options)


@pytest.mark.parametrize(("load_s", "step_s", "are_late"), [(0.1, 0.0, True), (0.0, 0.1, False)])
def test_a_batch_is_late_where_its_consumer_waits(load_s, step_s, are_late, monkeypatch):
    late = []
    monkeypatch.setattr(Shortage, "note", lambda _, *, is_late: late.append(is_late))
    for _ in prefetched("cpu", Files(10 * 8, side=64, seconds=load_s / 8), batch=8):
        time.sleep(step_s)
    assert len(late) == 10
    assert (sum(late) >= MANY) == are_late


@pytest.fixture
def helped(monkeypatch):
    """Whether another thread helped to decode, for each batch."""
    helped = []

    def noted(files, device, helper, decode=decoding.decode):
        helped.append(helper.is_needed)
        return decode(files, device, helper)

    monkeypatch.setattr("fastload.transforms.decode.decode", noted)
    return helped


def decode_one(stage):
    item = Item(tree_flatten(fl.collate([jpeg()])), None, BatchTimes(0, CPU))
    stage.pin(item)
    stage.decode(item)


@pytest.mark.parametrize(("is_late", "is_pressed"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_thread_helps_where_training_is_short_of_batches(is_late, is_pressed, helped):
    stage = DecodeStage(T.DecodeJpeg(), CPU)
    stage.pace = Pace()
    stage.pace.is_pressed = is_pressed
    for _ in range(MANY):
        stage.shortage.note(is_late=is_late)
    decode_one(stage)
    assert helped == [is_late and is_pressed]
    stage.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        stage._helper.submit(print)


@pytest.mark.parametrize("is_pressed", [False, True])
def test_beside_a_step_as_a_graph_it_helps_as_soon_as_there_is_no_time_to_spare(is_pressed, helped):
    stage = DecodeStage(T.DecodeJpeg(), CPU, for_graphs=True)
    stage.pace = Pace()
    stage.pace.is_pressed = is_pressed
    decode_one(stage)
    stage.close()
    assert helped == [is_pressed]


@pytest.mark.gpu
@pytest.mark.parametrize(("count", "cycles", "is_helped"), [(256, 0, True), (WORTH_TWO, 60_000_000, False)])
def test_only_a_device_with_nothing_left_to_do_gets_help(count, cycles, is_helped, helped):
    """No file is waited for, 256 take longer to decode than to transform, and a step of so many cycles 30 to 60 ms."""
    for images, _ in prefetched_batches("cuda", Ready(Files(count, side=192), batches=60)):
        images.sum()
        torch.cuda._sleep(cycles)
    assert len(helped) == 60
    assert any(helped) == is_helped


@pytest.mark.gpu
@pytest.mark.parametrize("static", [False, True])
def test_only_batches_at_fixed_addresses_get_help_where_none_is_late(static, helped, monkeypatch):
    class Pressed(Pace):
        def rest(self, waited, now):  # noqa: ARG002  (the pace's arguments)
            self.is_pressed = True
            return 0.0

    monkeypatch.setattr("fastload.prefetch.decode_ahead.Pace", Pressed)
    for images, _ in prefetched("cuda", Files(10 * WORTH_TWO, side=192), batch=WORTH_TWO, workers=2, static=static):
        images.sum()
        torch.cuda._sleep(60_000_000)
    assert helped == [static] * 10


class Passing:
    """A point in the work of a device, and a side stream whose every point it is."""

    def __init__(self, *, is_passed):
        self.is_passed = is_passed

    def consumed(self, consumer):  # noqa: ARG002
        return self

    def wait(self): ...

    def passed(self):
        return self.is_passed


@pytest.mark.parametrize("is_passed", [False, True])
def test_a_batch_is_awaited_once_the_device_has_nothing_else_to_do(is_passed):
    slots, side = SlotPool(depth=3), Passing(is_passed=is_passed)
    for _ in range(4):
        slots.release(side)  # the consumer asks
        slots.hand_out(slots.acquire(), None)
    assert not slots.is_awaited  # it works on the last
    slots.release(side)
    assert slots.is_awaited == is_passed
