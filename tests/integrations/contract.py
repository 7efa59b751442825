"""What a loader must do inside each framework and over each source: twelve checks of what a training loop saw.

A subject is a class of tests, one for each framework or source::

    class TestLightning(Contract):
        subject, library, ranks = "Lightning", "lightning", 2

        @staticmethod
        def train(scenario, record): ...  # runs in a process of its own for each rank

``train`` trains as ``scenario`` says and notes in ``record`` what the loop saw. All scenarios of a rank run one after
another in one process, as torchrun would start it; the checks then compare the records.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch

import fastload as fl
from fastload import transforms as T

SAMPLES, BATCH, EPOCHS, ACCUMULATE = 38, 4, 2, 3
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
FIRST_BAD = 16  # in order, two batches on each of two ranks come before it, and four on one


@dataclass(frozen=True)
class Scenario:
    """What a run does. Without ``wrapped`` it uses the framework's own loader, which is the truth for the order."""

    wrapped: bool = True
    shuffle: bool = True
    epochs: int = EPOCHS
    leave_after: int | None = None  # break out of the first epoch after so many batches; the next one is whole
    save_after: int | None = None  # take the state after so many batches of the first epoch, and end
    resume: Any = None  # the state to go on from, to the end of the last epoch
    first_bad: int | None = None  # samples from this number on cannot be read
    home: Path = Path()  # for files of this scenario


@dataclass
class Batch:
    """What the loop got: the samples' numbers, and the brightness that each image was given."""

    numbers: list[int]
    brightness: list[float]


@dataclass
class Record:
    """What one rank saw in one scenario; in ``epochs``, ``updates`` and ``counted`` one entry for each epoch begun."""

    epochs: list[list[Batch]] = field(default_factory=list)
    updates: list[list[int]] = field(
        default_factory=list
    )  # the number of each batch (from 1) that ended with an update
    counted: list[int] = field(default_factory=list)  # samples that the framework's metrics counted, over all ranks
    state: Any = None
    error: str = ""
    warnings: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # threads and processes

    def begin_epoch(self) -> None:
        self.epochs.append([])
        self.updates.append([])

    def saw(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Note a batch; images are those that ``transform`` made of ``image``."""
        brightness = images.double().flatten(1).mean(1) * STD[0] + MEAN[0]
        self.epochs[-1].append(Batch(labels.tolist(), brightness.tolist()))

    def updated(self) -> None:
        """Note that the batch seen last ended with an update."""
        self.updates[-1].append(len(self.epochs[-1]))

    def numbers(self, epoch: int) -> list[list[int]]:
        return [batch.numbers for batch in self.epochs[epoch]]


SCENARIOS = {
    "own": Scenario(wrapped=False),
    "first": Scenario(),
    "again": Scenario(),
    "left": Scenario(leave_after=2),
    "saved": Scenario(save_after=3),
    "resumed": Scenario(),  # from the state of the one before
    "bad": Scenario(shuffle=False, first_bad=FIRST_BAD, epochs=1),
}


def image() -> torch.Tensor:
    """A grey image, so that its mean tells what brightness the transform gave it."""
    return torch.full((3, 8, 8), 100, dtype=torch.uint8)


def transform() -> T.Compose:
    return T.Compose([T.RandomHorizontalFlip(), T.ColorJitter(brightness=0.5), T.Normalize(MEAN, STD)])


def decoding_transform() -> T.Compose:
    """For sources of files."""
    return T.Compose([T.DecodeJpeg(), *transform().transforms])


class UnreadableError(Exception):
    """What a data set raises for a sample that cannot be read."""


class Numbered(torch.utils.data.Dataset):
    """Images in memory; each label is the sample's number."""

    def __init__(self, first_bad: int | None = None):
        self.first_bad = first_bad

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if self.first_bad is not None and number >= self.first_bad:
            raise UnreadableError(f"sample {number}")
        return image(), number


class Model(torch.nn.Module):
    """As small as a model for 10 classes can be."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3, 40)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(images.flatten(2).mean(2))


class Contract:
    """The twelve checks, of what each rank saw in each scenario.

    A subject that cannot hold one overrides it, and says in its docstring why.
    """

    subject: ClassVar[str]
    library: ClassVar[str]  # the module to import
    ranks: ClassVar[int] = 1

    @staticmethod
    def train(scenario: Scenario, record: Record) -> None:
        """Train as ``scenario`` says, and note in ``record`` what the loop saw."""
        raise NotImplementedError

    def test_01_each_sample_comes_once(self, records):
        for epoch in range(EPOCHS):
            assert seen(records, "first", epoch) == seen(records, "own", epoch)
            assert set(seen(records, "first", epoch)) == set(range(SAMPLES))

    def test_02_the_order_is_that_of_the_own_loader(self, records):
        for rank in records:
            for epoch in range(EPOCHS):
                assert list(chain(*rank["first"].numbers(epoch))) == list(chain(*rank["own"].numbers(epoch)))

    def test_03_the_last_batch_is_that_of_the_own_loader(self, records):
        for rank in records:
            for epoch in range(EPOCHS):
                assert [*map(len, rank["first"].numbers(epoch))] == [*map(len, rank["own"].numbers(epoch))]

    def test_04_epochs_differ_and_seeds_repeat(self, records):
        for rank in records:
            assert rank["again"].epochs == rank["first"].epochs
            one, two = (brightness_by_number(rank["first"].epochs[epoch]) for epoch in range(EPOCHS))
            assert all(one[number] != two[number] for number in one.keys() & two.keys())

    def test_05_ranks_augment_differently(self, records):
        brightness = [
            value for rank in records for batch in rank["first"].epochs[0] for value in rounded(batch.brightness)
        ]
        # Of 40 draws of 256 levels of grey some agree by chance; of ranks that draw alike, all of one do.
        assert len(set(brightness)) > 0.7 * len(brightness)

    def test_06_an_epoch_may_be_left_early(self, records):
        for rank in records:
            left = rank["left"]
            assert [len(epoch) for epoch in left.epochs] == [2, len(rank["first"].epochs[1])]
            assert left.epochs == [rank["first"].epochs[0][:2], rank["first"].epochs[1]]

    def test_07_a_run_goes_on_in_the_middle_with_the_same_pixels(self, records):
        for rank in records:
            before, after = rank["saved"].epochs[0], rank["resumed"].epochs
            assert before == rank["first"].epochs[0][:3]
            assert [before + after[0], *after[1:]] == rank["first"].epochs

    def test_08_metrics_count_each_sample_once(self, records):
        for rank in records:
            assert rank["first"].counted == rank["own"].counted == [SAMPLES] * EPOCHS

    def test_09_updates_come_at_the_right_batches(self, records):
        for rank in records:
            assert rank["first"].updates == rank["own"].updates
            assert all(updates for updates in rank["first"].updates)

    def test_10_it_ends_clean(self, records):
        for rank in records:
            assert [scenario for scenario, record in rank.items() if record.left] == []

    def test_11_it_warns_of_nothing(self, records):
        for rank in records:
            own = Counter(rank["own"].warnings)
            for scenario in ("first", "again", "left", "saved", "resumed"):
                assert [each for each in rank[scenario].warnings if each not in own] == []

    def test_12_an_error_comes_at_its_batch(self, records):
        for rank in records:
            assert f"sample {FIRST_BAD}" in rank["bad"].error or "sample" in rank["bad"].error
            came = list(chain(*rank["bad"].numbers(0)))
            assert came == [number for number in came if number < FIRST_BAD]
        assert seen(records, "bad", 0) == list(range(FIRST_BAD))


def seen(records: list[dict[str, Record]], scenario: str, epoch: int) -> list[int]:
    """The samples of all ranks, sorted."""
    return sorted(chain.from_iterable(chain.from_iterable(rank[scenario].numbers(epoch) for rank in records)))


def brightness_by_number(batches: list[Batch]) -> dict[int, float]:
    return {number: value for batch in batches for number, value in zip(batch.numbers, batch.brightness, strict=True)}


def rounded(values: list[float]) -> list[float]:
    return [round(value, 6) for value in values]


# How ranks run


def run_ranks(subject: type[Contract], home: Path) -> list[dict[str, Record]]:
    """Run all scenarios on each rank, in processes as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(subject.ranks):
        where = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": subject.ranks, "LOCAL_WORLD_SIZE": subject.ranks}
        environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        environment |= {name: str(value) for name, value in where.items()} if subject.ranks > 1 else {}
        command = [sys.executable, "-m", "tests.integrations.rank", subject.__module__, subject.__name__, str(home)]
        with (home / f"{rank}.log").open("w") as log:
            processes.append(
                subprocess.Popen(
                    [*command, str(rank)],
                    env=environment,
                    cwd=Path(__file__).parents[2],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # a rank and its workers are one group, which can be ended as one
                )
            )
    codes = exit_codes(processes, seconds=240)
    logs = "\n".join(f"rank {rank}:\n{(home / f'{rank}.log').read_text()[-12000:]}" for rank in range(subject.ranks))
    assert codes == [0] * subject.ranks, logs
    return [pickle.loads((home / f"{rank}.pickle").read_bytes()) for rank in range(subject.ranks)]


def exit_codes(processes: list[subprocess.Popen[bytes]], seconds: float) -> list[int]:
    """Wait for the ranks. When one fails, or time is up, the others are aborted: they log where their threads are."""
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            codes = [process.poll() for process in processes]
            if None not in codes or any(codes):
                break
            time.sleep(0.05)
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGABRT)
        return [process.wait(timeout=60) for process in processes]
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wrap(loader: Any, scenario: Scenario, **settings: Any) -> Any:
    """The scenario's loader: ``loader`` itself, or around it a ``PrefetchLoader`` with the contract's transform."""
    return (
        fl.PrefetchLoader(loader, **{"transform": transform(), "device": "cpu", **settings})
        if scenario.wrapped
        else loader
    )
