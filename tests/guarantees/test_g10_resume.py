"""G10: A new loader goes on after the batch that was yielded last.

tests/resume kills processes and has many samplers.
"""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import fastload as fl
from fastload import transforms as T
from tests.guarantees.shared import AUGMENT, Ramps


class RampStream(IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        return (Ramps()[index] for index in range(worker.id if worker else 0, 32, worker.num_workers if worker else 1))


def resumable(dataset, workers):
    shuffle = {} if dataset is RampStream else {"shuffle": True}
    wrapped = DataLoader(dataset(), batch_size=4, num_workers=workers, **shuffle)
    return fl.PrefetchLoader(wrapped, transform=T.Compose(AUGMENT), device="cpu", depth=4, seed=1)


def epochs_to_the_third(loader):
    while loader.epoch < 3:
        for images, labels in loader:
            yield labels.tolist(), images


@pytest.mark.parametrize("dataset", [Ramps, RampStream])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("place", [1, 8, 13])
def test_g10_a_new_loader_goes_on_after_the_batch_that_was_yielded_last(dataset, workers, place, tmp_path):
    torch.manual_seed(3)
    expected = []
    loader = resumable(dataset, workers)
    for batch in epochs_to_the_third(loader):
        expected.append(batch)
        if len(expected) == place:
            torch.save(loader.state_dict(), tmp_path / "state.pt")
    torch.manual_seed(4)
    resumed = resumable(dataset, workers)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt"))
    actual = list(epochs_to_the_third(resumed))
    assert [labels for labels, _ in actual] == [labels for labels, _ in expected[place:]]
    assert all(torch.equal(images, other) for (_, images), (_, other) in zip(actual, expected[place:], strict=True))
