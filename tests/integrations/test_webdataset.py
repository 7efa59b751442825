"""WebDataset: archives shared over two ranks; files undecoded, labels from their bytes."""

from __future__ import annotations

import io
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
from torch.utils.data import DataLoader

import fastload as fl
from tests.integrations.contract import (
    BATCH,
    SAMPLES,
    Contract,
    Record,
    Scenario,
    UnreadableError,
    decoding_transform,
    wrap,
)
from tests.integrations.source_loop import join_ranks, jpeg, train

RANKS = 2
PACK = partial(fl.collate, images="image")


def archives(folder: Path) -> list[str]:
    """One for each rank, with half of the samples."""
    urls = [str(folder / f"{rank}.tar") for rank in range(RANKS)]
    for rank, url in enumerate(urls):
        with tarfile.open(url, "w") as archive:
            for number in range(SAMPLES)[rank * SAMPLES // RANKS : (rank + 1) * SAMPLES // RANKS]:
                for name, content in ((f"{number:04}.jpg", jpeg()), (f"{number:04}.cls", str(number).encode())):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
    return urls


def samples(urls: list[str]) -> wds.WebDataset:
    data = wds.WebDataset(urls, shardshuffle=False, nodesplitter=wds.split_by_node, empty_check=False)
    return data.rename(image="jpg", label="cls").map_dict(label=int)


def readable(sample: dict[str, Any], first_bad: int) -> dict[str, Any]:
    if sample["label"] >= first_bad:
        raise UnreadableError(f"sample {sample['label']}")
    return sample


class TestWebDataset(Contract):
    """Its ``detshuffle`` draws the order from the seed and a count of passes, so that a run can be repeated."""

    subject, library, ranks = "WebDataset", "webdataset", RANKS

    @staticmethod
    def train(scenario: Scenario, record: Record) -> None:
        rank = join_ranks()
        folder = scenario.home / str(rank)
        folder.mkdir(exist_ok=True)
        data = samples(archives(folder))
        if scenario.shuffle:
            data = data.compose(wds.detshuffle(bufsize=16, initial=16, seed=0))
        if scenario.first_bad is not None:
            data = data.map(partial(readable, first_bad=scenario.first_bad))
        loader = DataLoader(data, BATCH, collate_fn=PACK)
        train(scenario, record, wrap(loader, scenario, transform=decoding_transform()))


def test_labels_in_bytes_are_no_files(tmp_path):
    data = wds.WebDataset(archives(tmp_path), shardshuffle=False).to_tuple("jpg", "cls")
    images, labels = next(iter(DataLoader(data, BATCH, collate_fn=fl.collate)))
    assert len(images) == BATCH
    assert not images.problems
    assert labels == [b"0", b"1", b"2", b"3"]


def test_a_shuffle_that_differs_each_time_is_refused_on_resume(tmp_path):
    def loader():
        data = samples(archives(tmp_path)).shuffle(SAMPLES, initial=SAMPLES)
        return fl.PrefetchLoader(DataLoader(data, BATCH, collate_fn=PACK), transform=decoding_transform(), device="cpu")

    begun = loader()
    batches = iter(begun)
    for _ in range(3):
        next(batches)
    resumed = loader()
    resumed.load_state_dict(begun.state_dict())
    with pytest.raises(ValueError, match=r"(?s)read again, differs.*wds\.detshuffle"):
        iter(resumed)
