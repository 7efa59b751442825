"""What the resampling kernels read of each image: where it lies, where its output goes, and its window."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "ADDRESS",
    "CHANNEL",
    "COLUMNS",
    "FLIP",
    "HEIGHT",
    "LENGTH",
    "OFFSET",
    "OUTPUT",
    "PIXEL",
    "ROW",
    "START",
    "VIRTUAL",
    "WIDTH",
    "WINDOW",
    "entry",
]

ADDRESS, HEIGHT, WIDTH, CHANNEL, ROW, PIXEL = (tl.constexpr(i) for i in range(6))  # of a source, and of an output
OUTPUT = tl.constexpr(6)  # where an output's columns begin
WINDOW = tl.constexpr(12)  # where a window's begin, which come in pairs, y and x:
START, LENGTH, VIRTUAL, OFFSET, FLIP = (tl.constexpr(i) for i in range(0, 10, 2))
COLUMNS = tl.constexpr(22)


@triton.jit
def entry(row, column):
    return tl.load(row + column).to(tl.int32)
