"""What the resampling kernels read of each image: where it lies, where its output goes, and its window."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from fastload.structure.ragged import Ragged

__all__ = [
    "ADDRESS",
    "CHANNEL",
    "COLUMNS",
    "FLIP",
    "HEIGHT",
    "INVERSE",
    "LENGTH",
    "OFFSET",
    "OUTPUT",
    "PIXEL",
    "ROW",
    "SCALE",
    "START",
    "VIRTUAL",
    "WIDTH",
    "WINDOW",
    "entry",
    "fraction",
    "table_of",
]

ADDRESS, HEIGHT, WIDTH, CHANNEL, ROW, PIXEL = (tl.constexpr(i) for i in range(6))  # of a source, and of an output
OUTPUT = tl.constexpr(6)  # where an output's columns begin
WINDOW = tl.constexpr(12)  # where a window's begin, which come in pairs, y and x:
START, LENGTH, VIRTUAL, OFFSET, FLIP, SCALE, INVERSE = (tl.constexpr(i) for i in range(0, 14, 2))
COLUMNS = tl.constexpr(26)


@triton.jit
def entry(row, column):
    return tl.load(row + column).to(tl.int32)


@triton.jit
def fraction(row, column):
    return entry(row, column).to(tl.float32, bitcast=True)


def table_of(images: Ragged, outs: Ragged, windows: torch.Tensor) -> torch.Tensor:
    """An image a row, int64 (N, COLUMNS) on the CPU.

    ``SCALE`` is how many pixels of the box become one, and ``INVERSE`` is one over the larger of that and 1: the bits
    of float32 numbers.
    """
    window = windows.numpy()
    length, virtual = (window[:, i.value : i.value + 2].astype(np.float32) for i in (LENGTH, VIRTUAL))
    scale = length / virtual
    inverse = 1 / np.maximum(scale, np.float32(1))
    bits = [fractions.view(np.int32) for fractions in (scale, inverse)]
    return torch.from_numpy(np.concatenate([images.table.numpy(), outs.table.numpy(), window, *bits], axis=1))
