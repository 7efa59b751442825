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
    "channel_layout",
    "entry",
    "fraction",
    "padded",
    "table_of",
]

ADDRESS, HEIGHT, WIDTH, CHANNEL, ROW, PIXEL = (tl.constexpr(i) for i in range(6))  # of a source, and of an output
OUTPUT = tl.constexpr(6)  # where an output's columns begin
WINDOW = tl.constexpr(12)  # where a window's begin, which come in pairs, y and x:
START, LENGTH, VIRTUAL, OFFSET, FLIP, SCALE, INVERSE = (tl.constexpr(i) for i in range(0, 14, 2))
COLUMNS = tl.constexpr(26)

PACKED_CHANNELS = 4  # interleaved channels are multiplied together up to here; above, the zeros cost too much


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


def channel_layout(images: Ragged) -> str:
    """How channels lie in memory: "planar", "packed" (interleaved) or "strided"."""
    channel, _, pixel = images.table.numpy()[:, CHANNEL.value :].T
    if (pixel == 1).all():
        return "planar"
    packed = ((channel == 1) & (pixel == images.channels)).all() and images.channels <= PACKED_CHANNELS
    return "packed" if packed else "strided"


def padded(images: Ragged, outs: Ragged, windows: torch.Tensor) -> bool:
    """Whether a box reaches outside of its image, or an output outside of its resized box."""
    source, target, window = images.table.numpy(), outs.table.numpy(), windows.numpy()
    start, length, virtual, offset = (window[:, i : i + 2] for i in range(0, 8, 2))
    outside = (start < 0) | (start + length > source[:, 1:3]) | (offset < 0) | (offset + target[:, 1:3] > virtual)
    return bool(outside.any())
