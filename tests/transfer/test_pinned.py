"""Copies by several threads are copies."""

import pytest
import torch

from fastload.transfer.pinned import PIECE, SHORT, THREADS, memcpy

SIZES = [0, 1, SHORT - 1, SHORT, PIECE, 2 * PIECE, 3 * PIECE - 1, THREADS * PIECE + 5, 50 * 2**20 + 7]


@pytest.mark.parametrize("size", SIZES)
def test_a_copy_has_every_byte(size):
    source = torch.randint(0, 256, (size,), dtype=torch.uint8)
    target = torch.zeros_like(source)
    memcpy([(target.data_ptr(), source.data_ptr(), size)])
    assert torch.equal(target, source)
