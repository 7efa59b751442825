"""G13: randomness differs between ranks wherever samples do, and who sees the samples of another rank is told.

A process group that sends nothing makes this process one of several ranks. How samplers and Accelerate's shards deal
out an epoch is in tests/resume/test_share.py; ranks in processes of their own are in tests/resume/test_lives.py.
"""

import copy
import pickle
import warnings
from contextlib import contextmanager

import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SubsetRandomSampler, WeightedRandomSampler

import fastload as fl
from fastload import transforms as T
from tests.guarantees.shared import Ramps

fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
AUGMENT = [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.MixUp(1.0, labels_getter=None)]


@contextmanager
def rank_of(rank, ranks):
    distributed.init_process_group("fake", rank=rank, world_size=ranks, store=fake_pg.FakeStore())
    try:
        yield
    finally:
        distributed.destroy_process_group()


class SplitByRank(IterableDataset):
    """Each rank streams the same images, so that only the augmentations tell ranks apart."""

    def __iter__(self):
        return (Ramps()[3] for _ in range(16))


def prefetched(loader, **options):
    return fl.PrefetchLoader(loader, transform=T.Compose(AUGMENT), device="cpu", **options)


@pytest.mark.parametrize("loader", [DataLoader(SplitByRank(), 4), list(DataLoader(SplitByRank(), 4))])
def test_g13_ranks_of_an_iterable_draw_differently(loader):
    seen = []
    for rank in range(3):
        with rank_of(rank, 3), warnings.catch_warnings():
            warnings.simplefilter("error")
            images = torch.cat([images for images, _ in prefetched(loader)])
        assert not any(torch.equal(image, other) for image in images for other in seen)
        seen += list(images)


UNSHARED = {
    "in order": lambda: DataLoader(Ramps(), 4),
    "shuffled": lambda: DataLoader(Ramps(), 4, shuffle=True),
    "a subset": lambda: DataLoader(Ramps(), 4, sampler=SubsetRandomSampler(range(8))),
}


@pytest.mark.parametrize("kind", UNSHARED)
def test_g13_ranks_that_all_see_all_samples_are_told_once_with_the_cure(kind):
    with rank_of(1, 2):
        loader = prefetched(UNSHARED[kind]())
        with pytest.warns(UserWarning, match=r"(?s)each of the 2 ranks .* all samples.*DistributedSampler\(dataset\)"):
            list(loader)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(loader)
            list(prefetched(UNSHARED[kind](), shard=(0, 1)))


def test_g13_ranks_that_are_to_see_the_same_are_augmented_alike():
    seen = []
    for rank in range(2):
        with rank_of(rank, 2):
            seen.append(torch.cat([images for images, _ in prefetched(DataLoader(Ramps(), 4), shard=(0, 1))]))
    assert torch.equal(*seen)


@pytest.mark.parametrize(
    "sampler",
    [lambda: DistributedSampler(Ramps()), lambda: WeightedRandomSampler([1.0] * 32, 32), lambda: range(0, 32, 2)],
)
def test_g13_ranks_that_may_see_their_own_samples_are_told_nothing(sampler):
    with rank_of(0, 2), warnings.catch_warnings():
        warnings.simplefilter("error")
        list(prefetched(DataLoader(Ramps(), 4, sampler=sampler())))


REBUILT = {
    "with other samples": lambda of: DataLoader(of.dataset, batch_sampler=[[0, 1]], collate_fn=of.collate_fn),
    "sample by sample": lambda of: DataLoader(of.dataset, batch_size=None, collate_fn=of.collate_fn),
    "in workers": lambda of: DataLoader(of.dataset, 4, num_workers=1, collate_fn=of.collate_fn),
    "of a copy": lambda of: DataLoader(of.dataset, 4, collate_fn=copy.copy(of).collate_fn),
}


@pytest.mark.parametrize("how", REBUILT)
def test_g13_a_loader_rebuilt_from_the_attributes_raises_and_names_the_cure(how):
    loader = prefetched(DataLoader(Ramps(), 4))
    with pytest.raises(RuntimeError, match=r"(?s)without its transform.*loader\.rewrapped"):
        next(iter(REBUILT[how](loader)))


def test_g13_the_collate_fn_is_to_be_looked_at_and_pickled():
    loader = prefetched(DataLoader(Ramps(), 4, collate_fn=fl.collate))
    assert loader.collate_fn == fl.collate == pickle.loads(pickle.dumps(loader.collate_fn))
    assert loader.collate_fn.__name__ == "collate"
    assert len({loader.collate_fn, fl.collate}) == 1
