"""Loaders inside wrappers of frameworks: their data set is told the epoch, and their files are decoded ahead."""

import threading

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import fastload as fl
from fastload import transforms as T
from fastload.resume.wrapped_loader import yields_fresh_batches
from tests.files import jpeg


class Wrapper:
    """As frameworks wrap a loader, to move its batches or to count them."""

    def __init__(self, loader, name="loader"):
        setattr(self, name, loader)
        self.wrapped = loader

    def __iter__(self):
        yield from self.wrapped


class Turning(IterableDataset):
    """An order of its own each epoch, as Hugging Face's iterable data sets have."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return (torch.tensor((place + self.epoch) % 12) for place in range(12))


def loop(loader, epochs, leave_at=None):
    """Train as docs/resume.md says; the samples of each epoch, until ``leave_at`` batches of its first."""
    seen = []
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        seen.append([])
        for batch in loader:
            seen[-1].append(batch.tolist())
            if len(seen[-1]) == leave_at:
                return seen
    return seen


@pytest.mark.parametrize("wrap", [lambda loader: loader, Wrapper], ids=["plain", "wrapped"])
def test_g10_an_iterable_data_set_has_the_epoch_and_resumes_in_its_order(wrap):
    def loader():
        return fl.PrefetchLoader(wrap(DataLoader(Turning(), 4)), device="cpu")

    whole = loop(loader(), 3)
    assert whole[0] != whole[1] != whole[2]
    left = loader()
    left.set_epoch(1)
    begun = loop(left, 3, leave_at=2)
    resumed = loader()
    resumed.load_state_dict(left.state_dict())
    rest = loop(resumed, 3)
    assert [begun[0] + rest[0], *rest[1:]] == whole[1:]


def test_a_data_set_is_told_the_epoch_by_one_only():
    class Loader(DataLoader):
        def set_epoch(self, epoch):
            self.dataset.set_epoch(10 * epoch)

    loader = fl.PrefetchLoader(Loader(Turning(), 4), device="cpu")
    loader.set_epoch(3)
    assert loader.dataset.epoch == 30


FRESH = {
    "a DataLoader with workers": (lambda: DataLoader([1], num_workers=1), True),
    "without workers": (lambda: DataLoader([1]), False),
    "a wrapper of one with": (lambda: Wrapper(DataLoader([1], num_workers=1), "_dataloader"), True),
    "two wrappers": (lambda: Wrapper(Wrapper(DataLoader([1], num_workers=1), "dataloader")), True),
    "a pipeline": (lambda: Wrapper([DataLoader([1], num_workers=1), list], "pipeline"), True),
    "batches in memory": (lambda: [1], False),
}


@pytest.mark.parametrize("kind", FRESH)
def test_batches_are_fresh_where_workers_make_them(kind):
    make, fresh = FRESH[kind]
    assert yields_fresh_batches(make()) is fresh


def test_a_loader_may_promise_fresh_batches_and_has_its_files_decoded_ahead():
    class Streamed(list):
        yields_fresh_batches = True

    loader = fl.PrefetchLoader(Streamed([fl.collate([jpeg(8, 8)])] * 9), transform=T.DecodeJpeg(), device="cpu")
    one_pass = iter(loader)
    next(one_pass)
    assert "fastload-decode" in {thread.name for thread in threading.enumerate()}
    loader.close()
