"""G8: Attributes are those of the wrapped loader."""

import pytest
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import fastload as fl
from tests.batches import Numbered, numbered_loader


def test_g08_answers_as_the_wrapped_loader():
    wrapped = numbered_loader(samples=10)
    loader = fl.PrefetchLoader(wrapped, device="cpu")
    assert len(loader) == len(wrapped) == 3
    for name in ("dataset", "sampler", "batch_sampler", "batch_size", "num_workers", "drop_last"):
        assert getattr(loader, name) is getattr(wrapped, name)
    assert loader.collate_fn == wrapped.collate_fn  # not the same: nobody may call it (G13)
    with pytest.raises(AttributeError, match="no_such_thing"):
        loader.no_such_thing  # noqa: B018


def test_g08_a_loader_without_length_has_none():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    loader = fl.PrefetchLoader(DataLoader(Stream()), device="cpu")
    with pytest.raises(TypeError):
        len(loader)
    assert len(list(loader)) == 3


def test_g08_set_epoch_reaches_the_sampler():
    sampler = DistributedSampler(Numbered(), num_replicas=2, rank=0)
    loader = fl.PrefetchLoader(DataLoader(Numbered(), batch_size=4, sampler=sampler), device="cpu")
    loader.set_epoch(5)
    assert sampler.epoch == 5
    expected = [labels.tolist() for _, labels in loader.loader]
    assert [labels.tolist() for _, labels in loader] == expected
