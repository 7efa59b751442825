"""G4: No more memory than stated."""

import gc
import time
import weakref

import pytest
import torch
from torch.utils.data import DataLoader

import fastload as fl
from fastload import transforms as T
from fastload.streams import SideStream, SyncStream
from tests.files import jpeg
from tests.guarantees.shared import HALF_A_MILLISECOND, MEAN, STD, one_batch


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_g04_no_more_than_depth_and_two_batches_are_alive(depth):
    alive, most = set(), 0

    class Batch(torch.Tensor):
        pass

    def batches():
        nonlocal most
        for number in range(30):
            batch = torch.full((2,), number).as_subclass(Batch)
            alive.add(number)
            weakref.finalize(batch, alive.discard, number)
            most = max(most, len(alive))
            yield batch
            del batch

    class Loader:
        def __iter__(self):
            return batches()

    loader = fl.PrefetchLoader(Loader(), device="cpu", depth=depth)
    for _ in range(3):
        for _ in loader:
            assert len(alive) <= depth + 2
    del _
    gc.collect()
    assert most <= depth + 2
    assert not alive


def reserved_memory(loader, *, behind: int) -> list[int]:
    """The allocator's memory after each step, on a device that is ``behind`` steps behind the host.

    All places are taken once at the beginning: later it is a matter of microseconds whether the last place is needed
    before the consumer has let go of a batch.
    """
    ends, reserved = [], []
    for number, (images, _) in enumerate(loader):
        if number == 0:
            first = images
        if number == 1:
            wait_until_nothing_is_allocated()
            del first
        torch.cuda._sleep(6 * HALF_A_MILLISECOND)  # slower than the loader
        images.max()
        ends.append(torch.cuda.Event())
        ends[-1].record()
        if number >= behind:
            ends[number - behind].synchronize()
        reserved.append(torch.cuda.memory_reserved())
    return reserved


def wait_until_nothing_is_allocated():
    before, now = None, torch.cuda.memory_stats()["allocation.all.allocated"]
    while before != now:
        time.sleep(0.1)
        before, now = now, torch.cuda.memory_stats()["allocation.all.allocated"]


@pytest.mark.gpu
@pytest.mark.parametrize("behind", [0, 20])
@pytest.mark.parametrize("depth", [2, 20])
def test_g04_device_memory_after_1000_batches_is_that_after_50(behind, depth):
    loader = fl.PrefetchLoader([one_batch()] * 1000, MEAN, STD, depth=depth)
    reserved = reserved_memory(loader, behind=behind)
    assert len(reserved) == 1000
    assert max(reserved[50:]) <= reserved[49]


@pytest.mark.gpu
def test_g04_device_memory_after_20_epochs_is_that_after_50_batches():
    loader = fl.PrefetchLoader([one_batch()] * 50, MEAN, STD)
    reserved = [reserved_memory(loader, behind=20)[-1] for _ in range(20)]
    assert max(reserved) <= reserved[0]


@pytest.mark.gpu
def test_g04_device_memory_after_5_loaders_of_files_is_that_after_two():
    """The allocator keeps what a stream has used, so a stream for each pass would keep its decoded images."""
    files = DataLoader([(jpeg(256, 256), 0)] * 32, 8, num_workers=1, collate_fn=fl.collate)
    transform = T.Compose([T.DecodeJpeg(), T.RandomResizedCrop(64), T.Normalize(MEAN, STD)])
    reserved = []
    for _ in range(5):
        for images, _ in fl.PrefetchLoader(files, transform=transform):
            images.max()
        del images
        gc.collect()
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert max(reserved) <= reserved[1]


@pytest.mark.gpu
def test_g04_at_most_depth_and_two_batches_are_on_the_device():
    batch = one_batch()
    size = sum(tensor.nbytes for tensor in batch)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    for _ in fl.PrefetchLoader([batch] * 60, depth=3):
        torch.cuda._sleep(20 * HALF_A_MILLISECOND)  # the host runs ahead, and lets go of batches that are read still
    del _
    on_device = torch.cuda.memory_stats()["active_bytes.all.peak"] - before
    assert 3 * size < on_device < (3 + 2 + 0.1) * size


@pytest.mark.gpu
def test_g04_memory_is_bounded_for_a_consumer_that_changes_streams():
    batch = one_batch()
    size = sum(tensor.nbytes for tensor in batch)
    slow, fast = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    iterator = iter(fl.PrefetchLoader([batch] * 40, depth=1))
    for number in range(40):  # the batch after the next one of each stream's comes on the other
        stream = slow if number % 4 < 2 else fast
        with torch.cuda.stream(stream):
            images, _ = next(iterator)
            if stream is slow:
                torch.cuda._sleep(40 * HALF_A_MILLISECOND)
            images.max()
    torch.cuda.synchronize()
    # Active memory counts what has been let go of until the allocator may give it out again.
    assert torch.cuda.memory_stats()["active_bytes.all.peak"] - before < (1 + 2 + 0.1) * size


class NotingBlocks(DataLoader):
    """Notes how many of the batches of files that it has yielded are alive."""

    def __iter__(self):
        self.blocks, self.most = weakref.WeakSet(), 0
        for batch in super().__iter__():
            self.blocks.add(batch[0])
            self.most = max(self.most, len(self.blocks))
            yield batch
            del batch


@pytest.mark.parametrize("workers", [0, 1])
def test_g04_batches_of_files_are_let_go_of_without_the_cycle_collector(workers):
    """Large trainings run with ``gc.disable()``: a cycle that holds a batch would be kept until the end."""
    files = [(jpeg(32, 32), number) for number in range(200)]
    wrapped = NotingBlocks(files, 4, num_workers=workers, collate_fn=fl.collate)
    transform = T.Compose([T.DecodeJpeg(), T.RandomResizedCrop(16)])
    gc.collect()
    gc.disable()
    try:
        for _ in fl.PrefetchLoader(wrapped, transform=transform, device="cpu", depth=2):
            pass
        assert wrapped.most <= 2 + 2 + 1  # one more where files are decoded
        assert not wrapped.blocks
    finally:
        gc.enable()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_g04_a_loader_lets_go_of_its_streams_without_the_cycle_collector(device):
    """PyTorch has 32, and the allocator keeps memory for each: a loader for each epoch would take them all."""
    files = DataLoader([(jpeg(32, 32), 0)] * 8, 4, collate_fn=fl.collate)
    transform = T.Compose([T.DecodeJpeg(), T.RandomResizedCrop(16)])
    gc.collect()
    gc.disable()
    try:
        before = streams_there()
        for is_whole in (True, False):
            loader = fl.PrefetchLoader(files, transform=transform, device=device)
            for _ in loader:
                if not is_whole:
                    break
            assert streams_there() > before
            loader.stats  # noqa: B018  (it may be read after each epoch)
            del loader, _
            assert streams_there() == before
    finally:
        gc.enable()


def streams_there():
    return sum(isinstance(each, SideStream | SyncStream) for each in gc.get_objects())


class FifthIsBad(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, number):
        if number == 5:
            raise BrokenError(f"sample {number}")
        return torch.full((3, 8, 8), number), number


class BrokenError(Exception):
    pass


@pytest.mark.parametrize("workers", [0, 1])
def test_g04_an_error_of_the_data_set_keeps_no_batch_without_the_cycle_collector(workers):
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(BrokenError) as caught:
            for _ in fl.PrefetchLoader(DataLoader(FifthIsBad(), 1, num_workers=workers), device="cpu"):
                pass
        error = weakref.ref(caught.value)
        del caught
        assert error() is None
    finally:
        gc.enable()
