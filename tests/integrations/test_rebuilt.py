"""Where a ``PrefetchLoader`` stands in the wrong place in Accelerate, what is said names the right line."""

import accelerate
import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fastload as fl
from fastload.integrations.accelerate import skip_first_batches

IMAGES = torch.zeros(16, 3, 4, 4, dtype=torch.uint8)


class Stream(IterableDataset):
    def __iter__(self):
        return zip(IMAGES, range(len(IMAGES)), strict=True)


@pytest.mark.parametrize("data", [TensorDataset(IMAGES, torch.arange(len(IMAGES))), Stream()], ids=["map", "iterable"])
def test_accelerates_skip_first_batches_names_the_one_that_skips_within(data):
    accelerate.PartialState(cpu=True)
    loader = fl.PrefetchLoader(DataLoader(data, 4), [0.5] * 3, [0.25] * 3, device="cpu")
    with pytest.raises(RuntimeError, match=r"fastload\.integrations\.accelerate\.skip_first_batches\(loader, 2\)"):
        next(iter(accelerate.skip_first_batches(loader, 2)))
    rest = list(skip_first_batches(loader, 2))
    assert [labels.tolist() for _, labels in rest] == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert all(images.dtype is torch.float32 for images, _ in rest)


def test_ranks_that_see_all_samples_are_told_accelerates_own_line():
    accelerate.Accelerator(cpu=True)
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        with pytest.warns(UserWarning, match=r"(?s)all samples.*PrefetchLoader\(accelerator\.prepare\(dataloader\)"):
            list(fl.PrefetchLoader(DataLoader(IMAGES, 4), [0.5] * 3, [0.25] * 3, device="cpu"))
    finally:
        distributed.destroy_process_group()
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
