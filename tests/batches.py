"""Loaders whose batches say who they are, and the counter-example that hands over the wrong ones."""

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset


class Numbered(Dataset):
    """Sample ``i`` is an image filled with ``i`` (modulo 256) and the label ``i``."""

    def __init__(self, samples: int = 20, size: int = 8, fail_at: int | None = None, error: Exception | None = None):
        self.samples = samples
        self.size = size
        self.fail_at = fail_at
        self.error = error or ValueError("sample is broken")

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == self.fail_at:
            raise self.error
        return torch.full((3, self.size, self.size), index % 256, dtype=torch.uint8), index


def numbered_loader(samples: int = 20, batch_size: int = 4, **options) -> DataLoader:
    dataset = Numbered(samples, fail_at=options.pop("fail_at", None), error=options.pop("error", None))
    return DataLoader(dataset, batch_size=batch_size, **options)


class NumberedBatches:
    """``count`` pinned batches, each filled with its own number; every one in fresh memory."""

    def __init__(self, count: int, shape: tuple[int, ...] = (16, 3, 64, 64)):
        self.count = count
        self.shape = shape

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(self.count):
            images = torch.full(self.shape, number % 256, dtype=torch.uint8).pin_memory()
            yield images, torch.full((self.shape[0],), number).pin_memory()


class ClassicPrefetcher:
    """The prefetcher of many training scripts; nothing tells the allocator that another stream reads the batch."""

    def __init__(self, loader, device: str = "cuda"):
        self.loader = loader
        self.device = device
        self.backend = torch.get_device_module(device)
        self.stream = self.backend.Stream()

    def __iter__(self):
        self.batches = iter(self.loader)
        self.preload()
        while self.upcoming is not None:
            self.backend.current_stream().wait_stream(self.stream)
            batch = self.upcoming
            self.preload()
            yield batch

    def preload(self):
        batch = next(self.batches, None)
        with self.backend.stream(self.stream):
            self.upcoming = batch and tuple(tensor.to(self.device, non_blocking=True) for tensor in batch)
