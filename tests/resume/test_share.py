"""Who shares an epoch: known from samplers, from Accelerate's shards, from the process group, or from ``shard``.

Accelerate's own objects are tried where it is installed; elsewhere objects with the same attributes stand in for them.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

import fastload as fl
from fastload import transforms as T
from fastload.resume.share import Share

SAMPLES = 24
IMAGES = torch.arange(8, dtype=torch.uint8).expand(SAMPLES, 3, 8, 8)
DATA = list(zip(IMAGES, range(SAMPLES), strict=True))
AUGMENT = T.Compose([T.RandomCrop(3), T.RandomHorizontalFlip()])


class BatchesInTurn(BatchSampler):
    """What Accelerate's ``BatchSamplerShard`` does where ranks have equally many batches."""

    def __init__(self, batch_sampler, num_processes, process_index, split_batches):
        self.batch_sampler, self.batch_size, self.drop_last = batch_sampler, batch_sampler.batch_size, False
        self.num_processes, self.process_index, self.split_batches = num_processes, process_index, split_batches

    def __len__(self):
        return len(self.batch_sampler) // (1 if self.split_batches else self.num_processes)

    def __iter__(self):
        batches = list(self.batch_sampler)
        if not self.split_batches:
            return iter(batches[self.process_index :: self.num_processes])
        part = self.batch_size // self.num_processes
        return (batch[part * self.process_index :][:part] for batch in batches)


def dealt_in_batches(rank, ranks, *, split):
    batches = BatchSampler(SequentialSampler(DATA), 4, False)
    return DataLoader(DATA, batch_sampler=BatchesInTurn(batches, ranks, rank, split))


LOADERS = {
    "DistributedSampler": lambda rank, ranks: DataLoader(
        DATA, 4, sampler=DistributedSampler(DATA, ranks, rank, shuffle=False)
    ),
    "whole batches": lambda rank, ranks: dealt_in_batches(rank, ranks, split=False),
    "parts of batches": lambda rank, ranks: dealt_in_batches(rank, ranks, split=True),
}


def augmented(loader, **options):
    batches = fl.PrefetchLoader(loader, transform=AUGMENT, device="cpu", **options)
    return [(label.item(), image) for images, labels in batches for image, label in zip(images, labels, strict=True)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", LOADERS)
def test_g09_a_sample_is_augmented_alike_on_whichever_rank(kind, ranks):
    expected = dict(augmented(DataLoader(DATA, 8)))
    rows = [row for rank in range(ranks) for row in augmented(LOADERS[kind](rank, ranks))]
    assert sorted(label for label, _ in rows) == list(range(SAMPLES))
    assert all(torch.equal(image, expected[label]) for label, image in rows)


def test_accelerates_own_shards_are_those_of_the_stand_in():
    shards = pytest.importorskip("accelerate.data_loader")
    for split in (False, True):
        theirs = shards.BatchSamplerShard(BatchSampler(SequentialSampler(DATA), 4, False), 2, 1, split)
        ours = dealt_in_batches(1, 2, split=split)
        assert list(theirs) == list(ours.batch_sampler)
        assert Share.of(DataLoader(DATA, batch_sampler=theirs)) == Share.of(ours)


def test_a_share_is_found_where_libraries_keep_it():
    numbers = {"process_index": 1, "num_processes": np.int64(2)}
    iterable = SimpleNamespace(dataset=SimpleNamespace(**numbers, batch_size=6, split_batches=True))
    dispatched = SimpleNamespace(state=SimpleNamespace(**numbers), batch_size=6, split_batches=False)
    of_mmengine = SimpleNamespace(sampler=SimpleNamespace(rank=1, world_size=3))
    assert Share.of(iterable) == Share(1, 2, 3, "Accelerate")
    assert Share.of(dispatched) == Share(1, 2, 6, "Accelerate")
    assert Share.of(of_mmengine) == Share(1, 3, 1, "sampler")
    assert Share.of(["a batch"]) == Share()
    assert Share.of(of_mmengine, (0, 5)) == Share(0, 5, 1, "shard")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [(2, TypeError), ((1,), TypeError), ((0.0, 2), TypeError), ((2, 2), ValueError), ((-1, 2), ValueError)],
)
def test_a_shard_that_is_none_is_refused(wrong, error):
    with pytest.raises(error, match=r"shard must be .*; got "):
        fl.PrefetchLoader(DATA, shard=wrong)
