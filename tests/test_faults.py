"""G5 and G6 under faults that are had for real: processes, files, memory and interrupts that fail."""

import itertools
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, Sampler, default_collate

import fastload as fl
from tests.batches import Numbered, numbered_loader


def collect(loader):
    """The labels that arrive, and the error that ends them."""
    labels, error = [], None
    try:
        for batch in loader:
            labels += batch[1].tolist()
    except Exception as raised:  # noqa: BLE001  (it is what the test looks at)
        error = raised
    return labels, error


def prefetched(wrapped):
    return fl.PrefetchLoader(wrapped, device="cpu")


# The user's own code fails


class TwoArguments(Exception):  # noqa: N818
    """What cannot be made from its message alone, as ``DataLoader`` would."""

    def __init__(self, path, reason):
        super().__init__(f"{path}: {reason}")


class NeverPickled(Exception):  # noqa: N818
    def __reduce__(self):
        raise TypeError("never to be pickled")


def two_arguments():
    return TwoArguments("9.jpg", "truncated")


def never_pickled():
    return NeverPickled("9.jpg: truncated")


class Fails(Numbered):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def __getitem__(self, index):
        if index == 9:
            raise self.make()
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [two_arguments, never_pickled])
def test_g05_an_error_that_no_process_can_send_is_told_of(make, workers):
    labels, error = collect(prefetched(DataLoader(Fails(make), 4, num_workers=workers)))
    assert labels == list(range(8))
    assert "9.jpg: truncated" in str(error)
    assert type(make()).__name__ in repr(error)


def broken_collate(samples):
    if samples[0][1] == 8:
        raise KeyError("no such field")
    return default_collate(samples)


@pytest.mark.parametrize("workers", [0, 2])
def test_g05_an_error_of_the_collate_function_arrives_at_its_batch(workers):
    labels, error = collect(prefetched(numbered_loader(collate_fn=broken_collate, num_workers=workers)))
    assert labels == list(range(8))
    assert isinstance(error, KeyError)
    assert "no such field" in str(error)


class RunsDry(Sampler):
    def __iter__(self):
        yield from range(9)
        raise LookupError("no index")

    def __len__(self):
        return 20


@pytest.mark.parametrize("workers", [0, 2])
def test_g05_an_error_of_the_sampler_is_its_own(workers):
    labels, error = collect(prefetched(numbered_loader(sampler=RunsDry(), num_workers=workers)))
    assert labels == ([] if workers else list(range(8)))  # workers are sent indices ahead of the first batch
    assert repr(error) == "LookupError('no index')"


def no_licence(_worker):
    raise OSError("no licence")


def test_g05_an_error_of_worker_init_is_its_own():
    labels, error = collect(prefetched(numbered_loader(worker_init_fn=no_licence, num_workers=2)))
    assert labels == []
    assert isinstance(error, OSError)
    assert "no licence" in str(error)


class Sealed:
    """It can be sent, and the one with the number 2 not be opened."""

    def __init__(self, number):
        self.number = number

    def __setstate__(self, state):
        if state["number"] == 2:
            raise ValueError("the seal is broken")
        self.__dict__ = state


class Bound:
    """The one with the number 2 cannot be sent."""

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        if self.number == 2:
            raise TypeError("bound to its process")
        return Bound, (self.number,)


def with_sealed(samples):
    return [*default_collate(samples), Sealed(samples[0][1] // 4)]


def with_bound(samples):
    return [*default_collate(samples), Bound(samples[0][1] // 4)]


def test_g05_an_error_in_receiving_a_batch_from_a_worker_arrives_at_the_batch():
    labels, error = collect(prefetched(numbered_loader(collate_fn=with_sealed, num_workers=1)))
    assert (labels, repr(error)) == (list(range(8)), "ValueError('the seal is broken')")


def test_g05_a_batch_that_a_worker_cannot_send_is_an_error_after_the_loaders_timeout(capfd):
    """The worker prints why and goes on; without a timeout ``DataLoader`` waits for the batch for ever."""
    labels, error = collect(prefetched(numbered_loader(collate_fn=with_bound, num_workers=1, timeout=2)))
    assert labels == list(range(8))
    assert "DataLoader timed out" in str(error)
    assert "bound to its process" in capfd.readouterr().err


# Resources run out


class KillsItself(Numbered):
    def __getitem__(self, index):
        if index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def in_a_script(code, *, within=(), timeout=60):
    """Its output, run as a user would; ``within`` is what runs it."""
    command = [*within, sys.executable, "-c", "import torch, fastload as fl\n" + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture
def in_little_shared_memory():
    """What runs a command with a /dev/shm of 200 KiB."""
    if not shutil.which("unshare"):
        pytest.skip("needs unshare, to have a small /dev/shm")
    within = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=200k tmpfs /dev/shm && exec "$@"', "sh"]
    tried = subprocess.run([*within, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"needs the right to mount a small /dev/shm: {tried.stderr.strip()}")
    return within


LARGE = """
from torch.utils.data import DataLoader
from tests.batches import Numbered
import multiprocessing, threading
try:
    for images, labels in fl.PrefetchLoader(DataLoader(Numbered(20, size=500), 4, num_workers=2), device="cpu"):
        print("a batch has come")
except RuntimeError as error:
    print(error, *getattr(error, "__notes__", ()))
print(threading.active_count(), multiprocessing.active_children())
"""


def test_g05_a_full_shared_memory_is_an_error_and_no_hang(in_little_shared_memory):
    run = in_a_script(LARGE, within=in_little_shared_memory)
    assert "shared memory" in run.stdout, run.stderr
    assert "a batch has come" not in run.stdout
    assert run.stdout.endswith("1 []\n")
    if "unable to allocate" in run.stdout and sys.version_info >= (3, 11):  # else the worker was killed by a bus error
        assert "/dev/shm, which is full" in run.stdout


FILES = """
from torch.utils.data import DataLoader
files = [(bytes(300_000), number) for number in range(24)]
for images, labels in fl.PrefetchLoader(DataLoader(files, 4, num_workers=2, collate_fn=fl.collate), device="cpu"):
    print(len(images.block), labels.tolist())
"""


def test_g05_files_are_handed_over_though_shared_memory_is_full(in_little_shared_memory):
    run = in_a_script(FILES, within=in_little_shared_memory)
    sizes, labels = zip(*(line.split(" ", 1) for line in run.stdout.splitlines()), strict=True)
    assert labels == tuple(str(list(range(first, first + 4))) for first in range(0, 24, 4)), run.stderr
    assert min(map(int, sizes)) > 1_000_000
