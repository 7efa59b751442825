"""Loaders and loops with one fault each, for the report to find."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, Dataset

__all__ = ["Images", "compute", "consume", "loader_of", "wait"]

SAMPLES = 480
BATCH = 8


class Images(Dataset):
    """Images, each of which ``cost`` is spent on: a function of the sample's number."""

    def __init__(self, cost=None, samples=SAMPLES):
        self.cost = cost
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        if self.cost is not None:
            self.cost(index)
        return torch.full((3, 8, 8), index % 256, dtype=torch.uint8), index


def wait(seconds):
    """As a slow disk does."""
    return lambda _: time.sleep(seconds)


def compute(seconds):
    """As a decoder does."""

    def spend(_):
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    return spend


def loader_of(cost=None, samples=SAMPLES, **settings):
    return DataLoader(Images(cost, samples), batch_size=BATCH, **settings)


def consume(loader, seconds=0.0):
    """Train on each batch for so long, without using a core."""
    for _ in loader:
        time.sleep(seconds)
