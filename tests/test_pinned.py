"""Copies by several threads are copies, and few of them are pinned at a time."""

from queue import SimpleQueue
from threading import Thread

import pytest
import torch

from fastload import pinned as module
from fastload.pinned import AT_ONCE, PIECE, SHORT, THREADS, move, pinned

SIZES = [0, 1, SHORT - 1, SHORT, PIECE, 2 * PIECE, 3 * PIECE - 1, THREADS * PIECE + 5, 50 * 2**20 + 7]


@pytest.mark.parametrize("size", SIZES)
def test_a_copy_has_every_byte(size):
    source = torch.randint(0, 256, (size,), dtype=torch.uint8)
    target = torch.zeros_like(source)
    move([(target.data_ptr(), source.data_ptr(), size)])
    assert torch.equal(target, source)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, 50 * 2**20 + 7])
def test_a_pinned_copy_is_pinned(size):
    source = torch.randint(0, 256, (size,), dtype=torch.uint8)
    target = pinned(source)
    assert target.is_pinned()
    assert torch.equal(target, source)


@pytest.mark.gpu
def test_who_pins_ahead_is_held_back(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 60.0)
    blocks: SimpleQueue[torch.Tensor] = SimpleQueue()

    def pin_ahead():
        for _ in range(20):
            blocks.put(pinned(torch.zeros(2**20, dtype=torch.uint8)))

    thread = Thread(target=pin_ahead)
    thread.start()
    for _ in range(20):
        assert blocks.qsize() <= AT_ONCE
        blocks.get(timeout=60.0)
    thread.join(timeout=60.0)


@pytest.mark.gpu
def test_who_keeps_what_is_pinned_gets_more_of_it(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    blocks = [pinned(torch.full((5,), number, dtype=torch.uint8)) for number in range(4 * AT_ONCE)]
    assert [int(block[-1]) for block in blocks] == list(range(4 * AT_ONCE))
