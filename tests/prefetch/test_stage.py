"""Files from a loader's workers are decoded by a thread of their own, ahead of the rest of the work."""

import threading
import time
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import fastload as fl
from fastload import transforms as T
from fastload.prefetch.decode_ahead import PINNED
from fastload.transfer.pinned import StagingPool
from tests.files import jpeg

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
FILES = [jpeg(20 + number % 7, 30 - number % 5) for number in range(24)]
BATCH = 4
DECODED_AHEAD = PINNED_AHEAD = 1  # a stage is one batch ahead of the next


class Files(Dataset):
    """Numbered files, of which some are broken."""

    def __init__(self, broken=()):
        self.broken = broken

    def __len__(self):
        return len(FILES)

    def __getitem__(self, index):
        return (FILES[index][:200] if index in self.broken else FILES[index]), index


class Counting(DataLoader):
    """Counts the batches that it is asked for."""

    pulled = 0

    def __iter__(self):
        for batch in super().__iter__():
            self.pulled += 1
            yield batch


class Noting(T.DecodeJpeg):
    """Notes which thread decodes, and how many batches' images are there then, the new ones among them."""

    def __init__(self):
        super().__init__()
        self.threads, self.most = [], 0
        self._images = weakref.WeakSet()

    def run(self, batch, key):
        decodes = not batch.is_decoded
        super().run(batch, key)
        if decodes:
            self.threads.append(threading.current_thread().name)
            self._images.add(batch.images)
            self.most = max(self.most, len(self._images))


class Waiting(Noting):
    """Keeps the thread that transforms, before it does, until the next batch has been decoded beside."""

    def run(self, batch, key):
        is_transformed = batch.is_decoded
        super().run(batch, key)
        if is_transformed:
            until = time.monotonic() + 10
            while self.most <= DECODED_AHEAD and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(0.05)  # in which a third would come


def loader(device, *, broken=(), on_error="raise", workers=2, last=()):
    transform = T.Compose([T.DecodeJpeg(on_error), T.RandomResizedCrop(16), T.Normalize([0.5] * 3, [0.5] * 3), *last])
    batches = Counting(Files(broken), BATCH, collate_fn=fl.collate, num_workers=workers)
    return fl.PrefetchLoader(batches, transform=transform, device=device, depth=1)


def decoding_threads():
    return [thread for thread in threading.enumerate() if thread.name in {"fastload-decode", "fastload-pin"}]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("broken", [[], [5, 13, 14], [4, 5, 6, 7]])
@pytest.mark.filterwarnings("ignore:files that cannot be decoded")
def test_batches_are_those_that_one_thread_would_make(broken, device):
    seen = []
    for batch in loader(device, broken=broken, on_error="skip"):
        seen.append(batch)
        assert len(seen) > 1 or decoding_threads()
    in_one = list(loader(device, broken=broken, on_error="skip", workers=0))
    for (images, labels), (expected, right) in zip(seen, in_one, strict=True):
        assert torch.equal(images, expected)
        assert torch.equal(labels, right)
    assert sorted(set(range(24)) - set(torch.cat([labels for _, labels in seen]).tolist())) == broken


@pytest.mark.parametrize("device", DEVICES)
def test_g05_a_bad_file_is_an_error_at_its_own_batch(device):
    batches = iter(loader(device, broken=[13]))
    assert [next(batches)[1].tolist()[0] for _ in range(3)] == [0, 4, 8]
    with pytest.raises(ValueError, match="sample 1: "):
        next(batches)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("workers", [0, 2])
def test_g05_to_decode_twice_is_an_error(workers, device):
    files = DataLoader(Files(), BATCH, collate_fn=fl.collate, num_workers=workers)
    twice = T.Compose([T.DecodeJpeg(), T.DecodeJpeg(), T.RandomResizedCrop(16)])
    with pytest.raises(TypeError, match="got Ragged"):
        next(iter(fl.PrefetchLoader(files, transform=twice, device=device)))


@pytest.mark.parametrize("device", DEVICES)
def test_g05_a_transform_that_fails_ends_the_decoding(device):
    """The next batches are decoded by then, or wait for a place."""

    def fails(_):
        raise RuntimeError("of the transform")

    with pytest.raises(RuntimeError, match="of the transform"):
        next(iter(loader(device, last=[fails])))
    assert not decoding_threads()


@pytest.mark.parametrize("device", DEVICES)
def test_g04_no_more_batches_are_pulled_than_have_a_place_or_are_decoded_or_pinned(device):
    prefetched = loader(device)
    batches = iter(prefetched)
    for taken in range(1, 5):
        next(batches)
        settled = None
        while settled != prefetched.loader.pulled:
            settled = prefetched.loader.pulled
            time.sleep(0.3)
        # Of depth + 2 places one is free again when the third is asked for.
        assert settled <= max(3, taken + 1) + DECODED_AHEAD + PINNED_AHEAD


@pytest.mark.parametrize("device", DEVICES)
def test_images_wait_for_a_place_decoded(device):
    decode = Noting()
    files = DataLoader(Files(), BATCH, collate_fn=fl.collate, num_workers=2)
    transform = T.Compose([decode, T.RandomResizedCrop(16)])
    with fl.PrefetchLoader(files, transform=transform, device=device, depth=1) as prefetched:
        batches = iter(prefetched)
        next(batches)
        # Of depth + 2 places none is free again before the third batch is asked for.
        expected = ["fastload-decode"] * (3 + DECODED_AHEAD)
        until = time.monotonic() + 30
        while len(decode.threads) < len(expected) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.3)  # for one more than expected
        assert decode.threads == expected


@pytest.mark.parametrize("device", DEVICES)
def test_g04_beside_the_batch_that_is_transformed_the_images_of_one_more_are_there(device):
    decode = Waiting()
    files = DataLoader(Files(), BATCH, collate_fn=fl.collate, num_workers=2)
    transform = T.Compose([decode, T.RandomResizedCrop(16)])
    assert len(list(fl.PrefetchLoader(files, transform=transform, device=device, depth=4))) == 6
    assert decode.most == 1 + DECODED_AHEAD


@pytest.mark.gpu
def test_g01_a_consumer_far_behind_gets_every_batch_whole():
    """Memory of the decoder's stream is read on the side stream, and results of that on the consumer's."""
    expected = [(images.cpu(), labels.cpu()) for images, labels in loader("cuda")]
    for _ in range(10):
        copies = []
        for images, labels in loader("cuda"):
            torch.cuda._sleep(5_000_000)
            copies.append((images.clone(), labels.clone()))
            del images, labels
        for (images, labels), (right, numbers) in zip(copies, expected, strict=True):
            assert torch.equal(images.cpu(), right)
            assert torch.equal(labels.cpu(), numbers)


@pytest.mark.gpu
def test_g04_few_batches_are_pinned_however_far_workers_are_ahead():
    file = jpeg(1500, 1500)
    block = 1 << (4 * len(file) - 1).bit_length()
    assert block >= 2**20
    batches = DataLoader([file] * 256, 4, collate_fn=fl.collate, num_workers=4, prefetch_factor=8, pin_memory=True)
    torch.cuda.synchronize()
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    for _ in fl.PrefetchLoader(batches, transform=T.Compose([T.DecodeJpeg(), T.RandomResizedCrop(16)]), device="cuda"):
        time.sleep(0.01)
    files = PINNED_AHEAD + StagingPool.MOST  # one that is decoded, and one of which the device still reads
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] - before < (files + 1) * block


@pytest.mark.gpu
def test_pinned_memory_for_files_is_taken_with_the_first_batch():
    """To take a block later would keep training from the device."""
    file = jpeg(1500, 1500)
    batches = DataLoader([file] * 4, 4, collate_fn=fl.collate, num_workers=1)
    torch.cuda.init()
    torch._C._host_emptyCache()
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    transform = T.Compose([T.DecodeJpeg(), T.RandomResizedCrop(16)])
    next(iter(fl.PrefetchLoader(batches, transform=transform, device="cuda")))
    taken = torch.cuda.host_memory_stats()["allocated_bytes.current"] - before
    assert taken >= PINNED * 4 * len(file)
