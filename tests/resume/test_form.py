"""What is no state of a loader is refused by an error that names the entry; what is saved, ``torch.load`` reads."""

import copy
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler

import fastload as fl
from fastload import transforms as T
from fastload.resume.form import FORM

IMAGES = torch.zeros(12, 3, 4, 4, dtype=torch.uint8)
WRONG = {
    "epoch": [-1, 2**32, 1.5, "a", True, None],
    "batches": [-1, 2.0, None],
    "drawn": ["a"],
    "samples": [None],
    "checksum": ["a", 1.5],
    "in_order": [None, 1],
    "finished": [3, {}, {"epoch": 0}, {"epoch": "a", "batches": 1}],
    "start": [None, [], {}],
    "start default_generator": [torch.zeros(3), torch.zeros(5056, dtype=torch.uint8), "a"],
    "start generators": [None, [1], [torch.zeros(2)], [torch.zeros(2, dtype=torch.uint8)], []],
    "start sampler_epoch": ["a"],
    "start kept_workers": [None],
    "default_generator": [7],
    "made_as": [None, {}],
    "made_as ranks": [0, None],
    "made_as batch_size": [0, "4"],
    "loader": [{"_snapshot": 1}],
}


def prefetched(**options):
    generator = torch.Generator().manual_seed(1)
    wrapped = DataLoader(IMAGES.clone(), 4, shuffle=True, generator=generator)
    return fl.PrefetchLoader(wrapped, transform=T.RandomHorizontalFlip(), device="cpu", **options)


def a_state():
    loader = prefetched()
    next(iter(loader))
    return loader.state_dict()


def forged(name, value):
    state = copy.deepcopy(a_state())
    *outer, last = name.split()
    (state[outer[0]] if outer else state)[last] = value
    return state


def test_each_entry_is_tried():
    assert {" ".join(path) for path in FORM} - WRONG.keys() == {"finished epoch", "finished batches"}


@pytest.mark.parametrize("name", WRONG)
def test_a_forged_entry_is_named(name):
    for wrong in WRONG[name]:
        with pytest.raises(ValueError, match=name.split()[-1].removesuffix("_size")):
            prefetched().load_state_dict(forged(name, wrong))


@pytest.mark.parametrize("name", WRONG)
def test_a_missing_entry_is_named(name):
    state = a_state()
    *outer, last = name.split()
    del (state[outer[0]] if outer else state)[last]
    with pytest.raises(ValueError, match=f"{last}'.* must be .*; got none"):
        prefetched().load_state_dict(state)


@pytest.mark.parametrize("wrong", [None, [], "state", 3])
def test_what_is_no_mapping_is_refused(wrong):
    with pytest.raises(
        TypeError, match=f"must be a mapping from PrefetchLoader.state_dict.*got {type(wrong).__name__}"
    ):
        prefetched().load_state_dict(wrong)


def test_a_state_that_was_refused_changes_nothing():
    loader = prefetched()
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="made_as"):
        loader.load_state_dict(forged("made_as", None))
    assert (loader.epoch, loader.resumed_at) == (0, 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("place", [0, 1, 3])
def test_numpys_integers_are_stored_as_plain_ones(place, tmp_path):
    def make():
        sampler = DistributedSampler(IMAGES, np.int64(1), np.int64(0))
        loader = fl.PrefetchLoader(
            DataLoader(IMAGES, 4, sampler=sampler),
            transform=T.RandomHorizontalFlip(),
            device="cpu",
            seed=np.uint64(3),
            depth=np.int32(2),
        )
        loader.set_epoch(np.int64(3))
        return loader

    loader = make()
    list(islice(loader, place))
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert type(state["epoch"]) is type(state["start"]["sampler_epoch"] or 0) is int
    resumed = make()
    resumed.load_state_dict(state)
    assert len(list(resumed)) == 3 - place % 3


@pytest.mark.parametrize(
    ("wrong", "error"),
    [("a", TypeError), (1.0, TypeError), (True, TypeError), (None, TypeError), (-1, ValueError), (2**32, ValueError)],
)
def test_an_epoch_that_is_none_is_refused(wrong, error):
    loader = prefetched()
    with pytest.raises(error, match=f"epoch must be .*; got {wrong!r}"):
        loader.set_epoch(wrong)
    assert loader.epoch == 0


class Unsized(Sampler):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(range(self.samples))


@pytest.mark.parametrize(("batch_size", "batches"), [(4, 1), (2, 2)])
def test_a_sampler_without_length_that_became_shorter_is_refused(batch_size, batches):
    def make(samples, batch_size):
        return fl.PrefetchLoader(DataLoader(IMAGES, batch_size, sampler=Unsized(samples)), device="cpu")

    loader = make(12, 4)
    list(islice(loader, 2))
    resumed = make(4, batch_size)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=f"of epoch 0, and the loader has {batches}: give it the data that it had"):
        iter(resumed)
    last = make(11, 4)
    iterator = iter(last)
    list(islice(iterator, 3))
    resumed = make(11, batch_size)
    resumed.load_state_dict(last.state_dict())
    assert list(resumed) == []
