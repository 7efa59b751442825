"""Runs that processes of their own live through: they are killed, and others go on from the state that was saved.

Processes are forked from a server that has imported all this and started no thread, so that one costs milliseconds.
"""

import contextlib
import multiprocessing
import os
import signal
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

import fastload as fl
from fastload import transforms as T
from tests.native_threads import let_gloo_rest

SAMPLES, BATCH, EPOCHS = 22, 4, 3

forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(["pytest", "tests.lives", "torchvision", "torchmetrics", "skimage.data", "rich.progress"])


def image(index: int) -> torch.Tensor:
    return torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(index))


class Images(Dataset):
    def __init__(self, samples: int = SAMPLES):
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return image(index), index


class Stream(IterableDataset):
    """Each worker yields its part of the samples; shuffled, in an order that it draws anew in each epoch."""

    def __init__(self, shuffle: bool):
        self.shuffle = shuffle

    def __iter__(self):
        info = get_worker_info()
        part = range(SAMPLES)[info.id :: info.num_workers] if info else range(SAMPLES)
        order = torch.randperm(len(part)).tolist() if self.shuffle else range(len(part))
        return ((image(part[place]), part[place]) for place in order)


def stateful(workers: int) -> DataLoader:
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415

    return StatefulDataLoader(Images(), BATCH, shuffle=True, num_workers=workers)


LOADERS: dict[str, Callable[[int], DataLoader]] = {
    "in order": lambda workers: DataLoader(Images(), BATCH, num_workers=workers),
    "shuffled": lambda workers: DataLoader(Images(), BATCH, shuffle=True, num_workers=workers),
    "kept workers": lambda workers: DataLoader(
        Images(), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    ),
    "stream": lambda workers: DataLoader(Stream(shuffle=False), BATCH, num_workers=workers),
    "shuffled stream": lambda workers: DataLoader(Stream(shuffle=True), BATCH, num_workers=workers),
    "stateful": stateful,
}


def prefetched(wrapped: DataLoader) -> fl.PrefetchLoader:
    augment = T.Compose([T.RandomResizedCrop(6), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4)])
    return fl.PrefetchLoader(wrapped, transform=augment, device="cpu", depth=3, seed=7)


def be_born() -> None:
    multiprocessing.set_start_method(
        "fork", force=True
    )  # for workers; else they would begin with a server of their own
    torch.set_num_threads(1)
    let_gloo_rest()


def live(kind: str, workers: int, home: Path) -> None:
    """Train from the saved state on, if there is one; write each batch into a log of this life, then save the state.

    The log's name says how many batches the state had seen.
    """
    os.setpgrp()  # so that workers can be told from those of others
    be_born()
    resumed, seen = (home / "state.pt").exists(), 0
    torch.manual_seed(os.getpid() if resumed else 1)  # a new process knows nothing of the old one
    loader = prefetched(LOADERS[kind](workers))
    if resumed:
        saved = torch.load(home / "state.pt", weights_only=True)
        loader.load_state_dict(saved["loader"])
        seen = saved["seen"]
    with (home / f"{time.monotonic_ns():020}-{seen}.log").open("a", buffering=1) as log:
        while loader.epoch < EPOCHS:
            for images, labels in loader:
                torch.rand(3)  # training draws from the default generator too
                log.write(f"{loader.epoch - 1} {labels.tolist()} {zlib.crc32(images.contiguous().numpy())}\n")
                seen += 1
                save({"loader": loader.state_dict(), "seen": seen}, home / "state.pt")
            save({"loader": loader.state_dict(), "seen": seen}, home / "state.pt")


def save(state: dict, path: Path) -> None:
    """Save ``state`` so that a killed process leaves the old file or the new one, never a part of it."""
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def lines_written(home: Path) -> list[tuple[int, list[str]]]:
    """What each life has logged, in turn, after how many batches that its state had seen."""
    logs = sorted(home.glob("*.log"))
    return [(int(log.stem.split("-")[1]), log.read_text().splitlines()) for log in logs]


def begin(kind: str, workers: int, home: Path) -> multiprocessing.Process:
    process = forked.Process(target=live, args=(kind, workers, home))
    process.start()
    return process


def was_killed(process: multiprocessing.Process, home: Path, *, after_lines: int, delay: float) -> bool:
    """Kill a life ``delay`` seconds after it has logged so many lines; False if it was over before."""
    lives = len(lines_written(home))

    def lines_of_this_life() -> int:
        return sum(len(lines) for _, lines in lines_written(home)[lives:])

    while process.is_alive() and lines_of_this_life() < after_lines:
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()
    process.join()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its workers, which would notice after some seconds
    return process.exitcode == -signal.SIGKILL


# Ranks


def live_as_rank(rank: int, ranks: int, home: Path, stop_after: int | None) -> None:
    """Train as one of several ranks for two epochs, or until the state is saved after so many batches."""
    be_born()
    torch.distributed.init_process_group("gloo", f"file://{home / f'store-{ranks}'}", rank=rank, world_size=ranks)
    wrapped = DataLoader(Images(50), BATCH, sampler=DistributedSampler(Images(50), seed=3), num_workers=rank % 2)
    loader = prefetched(wrapped)
    if (home / "state.pt").exists():
        loader.load_state_dict(torch.load(home / "state.pt", weights_only=True))
    rows = []
    for epoch in range(loader.epoch, 2):
        loader.set_epoch(epoch)
        for images, labels in loader:
            torch.distributed.barrier()  # as gradients would: ranks must have the same number of batches
            pixels = [zlib.crc32(each.contiguous().numpy()) for each in images]
            rows += [(epoch, *each) for each in zip(labels.tolist(), pixels, strict=True)]
            if len(rows) == (stop_after or 0) * BATCH:
                break
        if stop_after:
            break
    torch.save(rows, home / f"rows-{ranks}-{rank}.pt")
    if stop_after and rank == ranks - 1:  # any rank's will do
        save(loader.state_dict(), home / "state.pt")
    torch.distributed.destroy_process_group()


def run_ranks(target: Callable[..., None], *arguments, ranks: int = 2, seconds: float = 120, context=forked) -> None:
    """Run ``target(rank, *arguments)`` in a process for each rank; all must come to their end in time."""
    processes = [context.Process(target=target, args=(rank, *arguments)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(seconds)
        process.kill()  # if it hangs
        process.join()
    assert [process.exitcode for process in processes] == [0] * ranks


def live_as_ranks(ranks: int, home: Path, stop_after: int | None = None) -> list[tuple[int, int, int]]:
    """Epoch, sample and augmented pixels of all that the ranks have trained on."""
    run_ranks(live_as_rank, ranks, home, stop_after, ranks=ranks, seconds=60)
    return [row for rank in range(ranks) for row in torch.load(home / f"rows-{ranks}-{rank}.pt")]
