"""Memory that files are put in, one behind the other."""

import os

import numpy as np
import pytest
from torch.utils.data import DataLoader

from fastload.data.block import Block
from fastload.data.collate import collate
from fastload.data.encoded import ALIGNMENT
from tests.files import jpeg


@pytest.fixture(autouse=True)
def nothing_put_of_late(monkeypatch):
    monkeypatch.setattr(Block, "_usual", ALIGNMENT)


def test_it_grows_and_keeps_what_was_put():
    block, rng = Block(), np.random.default_rng(0)
    parts = [rng.integers(0, 256, size, dtype=np.uint8) for size in (1, ALIGNMENT, 0, 10_000, 3, 100_000)]
    offsets = [block.put(part if number % 2 else part.tobytes()) for number, part in enumerate(parts)]
    assert offsets == [0, 256, 0, 512, 512 + 10_240, 512 + 10_240 + 256]
    memory = block.finished().numpy()
    assert len(memory) == offsets[-1] + 100_096
    for offset, part in zip(offsets, parts, strict=True):
        assert np.array_equal(memory[offset : offset + len(part)], part)


def test_what_lies_in_its_place_is_not_moved():
    block = Block()
    block.put(b"a")
    block.free[:3] = b"bcd"
    assert block.put(block.free[:3]) == ALIGNMENT
    assert bytes(block.finished()[ALIGNMENT : ALIGNMENT + 3].numpy()) == b"bcd"


def test_nothing_put_is_a_block_too():
    assert len(Block().finished()) == ALIGNMENT


def test_it_begins_as_large_as_the_largest_of_late():
    block = Block()
    block.put(bytes(100_096))
    block.finished()
    for _ in range(2):  # a small field between large ones
        small = Block()
        small.finished()
    assert len(small.free) > 80_000
    for _ in range(100):
        small = Block()
        small.finished()
    assert len(small.free) < 10 * ALIGNMENT


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("form", [bytes, "path"])
def test_batches_of_all_sizes_are_whole(tmp_path, form, workers):
    contents = [jpeg(20 + 40 * (number % 7), 300) for number in range(24)]
    files = [tmp_path / f"{number}.jpg" for number in range(24)]
    for path, content in zip(files, contents, strict=True):
        path.write_bytes(content)
    kept = list(DataLoader(contents if form is bytes else files, 4, num_workers=workers, collate_fn=collate))
    received = [batch.file(row).numpy().tobytes() for batch in kept for row in range(4)]
    assert received == contents


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory is shared so on Linux only")
def test_memory_for_which_there_is_no_room_is_an_error_and_no_bad_file(monkeypatch):
    def refused(size):
        raise OSError(f"no memory for {size} bytes")

    block = Block()
    monkeypatch.setattr("fastload.data.block._empty", refused)
    with pytest.raises(OSError, match="no memory"):
        block.put(bytes(10_000))
