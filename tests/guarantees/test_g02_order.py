"""G2: The same batches in the same order."""

import pytest
import torch
from torch.utils.data import DataLoader

import fastload as fl
from tests.batches import numbered_loader


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("depth", [1, 2, 50])
def test_g02_same_batches_in_the_same_order_with_the_short_last_one(workers, depth):
    loader = fl.PrefetchLoader(numbered_loader(samples=10, num_workers=workers), device="cpu", depth=depth)
    for _ in range(2):
        assert [labels.tolist() for _, labels in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_g02_shuffling_is_that_of_the_wrapped_loader():
    torch.manual_seed(3)
    expected = [labels.tolist() for _, labels in numbered_loader(shuffle=True)]
    torch.manual_seed(3)
    assert [labels.tolist() for _, labels in fl.PrefetchLoader(numbered_loader(shuffle=True), device="cpu")] == expected


@pytest.mark.parametrize("seed", range(10))
def test_g02_without_workers_the_order_is_drawn_as_the_pass_begins(seed):
    """As with workers, so that what the training thread draws afterwards, or another loader, does not change it."""

    def begun(wrap, workers):
        torch.manual_seed(seed)
        first, second = (iter(wrap(numbered_loader(shuffle=True, num_workers=workers))) for _ in range(2))
        noise = torch.rand(1).item()
        return [labels.tolist() for passes in (second, first) for _, labels in passes], noise

    assert begun(lambda loader: fl.PrefetchLoader(loader, device="cpu"), 0) == begun(lambda loader: loader, 1)


def test_g02_a_sampler_may_begin_anew_with_each_iter():
    """As Lightning's for predictions does."""

    class Again:
        def __iter__(self):
            self._left = iter(range(4))
            return self

        def __next__(self):
            return next(self._left)

    loader = DataLoader(range(4), sampler=Again(), batch_size=None)
    assert [int(batch) for batch in fl.PrefetchLoader(loader, device="cpu")] == [0, 1, 2, 3]


def test_g02_an_empty_loader_yields_nothing():
    assert list(fl.PrefetchLoader(DataLoader([], sampler=[], batch_size=None), device="cpu")) == []
    assert list(fl.PrefetchLoader([], device="cpu")) == []
    iterator = iter(fl.PrefetchLoader([], device="cpu"))
    assert [next(iterator, "end"), next(iterator, "end")] == ["end", "end"]
