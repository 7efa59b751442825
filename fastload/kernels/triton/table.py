"""What the resampling kernels read of each image: where it lies, where its output goes, and its window."""

from __future__ import annotations

from typing import Any

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
    "Table",
    "entry",
    "fraction",
]

ADDRESS, HEIGHT, WIDTH, CHANNEL, ROW, PIXEL = (tl.constexpr(i) for i in range(6))  # of a source, and of an output
OUTPUT = tl.constexpr(6)  # where an output's columns begin
WINDOW = tl.constexpr(12)  # where a window's begin, which come in pairs, y and x:
START, LENGTH, VIRTUAL, OFFSET, FLIP, SCALE, INVERSE = (tl.constexpr(i) for i in range(0, 14, 2))
COLUMNS = tl.constexpr(26)

PACKED_CHANNELS = 4


@triton.jit
def entry(row, column):
    return tl.load(row + column).to(tl.int32)


@triton.jit
def fraction(row, column):
    return entry(row, column).to(tl.float32, bitcast=True)


class Table:
    """What a resampling launch reads of each image, and what the host asks about all images before it.

    The host asks a dozen questions a launch. Each is about a column's least value, its greatest, or the bits that any
    of its values has, so these are taken once for all columns.

    Attributes:
        rows: an image a row, int64 (N, COLUMNS). ``SCALE`` is how many pixels of the box become one, and ``INVERSE`` is
            one over the larger of that and 1: the bits of float32 numbers.
    """

    def __init__(self, images: Ragged, outs: Ragged, windows: torch.Tensor) -> None:
        window = windows.numpy()
        length, virtual = (window[:, i.value : i.value + 2].astype(np.float32) for i in (LENGTH, VIRTUAL))
        scale = length / virtual
        inverse = 1 / np.maximum(scale, np.float32(1))
        bits = [fractions.view(np.int32) for fractions in (scale, inverse)]
        self.rows = np.concatenate([images.table.numpy(), outs.table.numpy(), window, *bits], axis=1)
        self._channels = images.channels
        self._least = self.rows.min(0, initial=2**62).tolist()
        self._greatest = self.rows.max(0, initial=0).tolist()
        self._bits = np.bitwise_or.reduce(self.rows, 0, initial=0).tolist()

    @property
    def largest_output(self) -> tuple[int, int]:
        """The greatest height and the greatest width."""
        return self._greatest[OUTPUT.value + HEIGHT.value], self._greatest[OUTPUT.value + WIDTH.value]

    @property
    def largest_scale(self) -> float:
        """How many rows of a box become one, at most."""
        bits: np.float32 = np.int32(self._greatest[WINDOW.value + SCALE.value]).view(np.float32)
        return float(bits)

    def layout(self, side: int) -> str:
        """How channels lie in memory, of sources (0) or of outputs (``OUTPUT``): "planar", "packed" or "strided".

        Packed channels are interleaved, and few enough to be multiplied together: above, the zeros cost too much.
        """
        if self._is_all(side + PIXEL.value, 1):
            return "planar"
        return "packed" if self.is_interleaved(side) and self._channels <= PACKED_CHANNELS else "strided"

    def is_interleaved(self, side: int) -> bool:
        """Whether each pixel's channels, which are several, lie side by side, and pixels so too."""
        alike = self._is_all(side + CHANNEL.value, 1) and self._is_all(side + PIXEL.value, self._channels)
        return alike and self._channels > 1

    def bits(self, side: int, *columns: tl.constexpr) -> int:
        """The bits that any of these columns' values has, of sources (0) or of outputs (``OUTPUT``)."""
        found = 0
        for column in columns:
            found |= self._bits[side + column.value]
        return found

    @property
    def longest_plane(self) -> int:
        """No plane of a source has more elements than this, from its first row to its last."""
        return int(self._greatest[HEIGHT.value] * self._greatest[ROW.value])

    @property
    def is_padded(self) -> bool:
        """Whether a box reaches outside of its image, or an output outside of its resized box."""
        start, length, virtual, offset = (_pair(self.rows, WINDOW.value + i) for i in range(0, 8, 2))
        source, target = _pair(self.rows, HEIGHT.value), _pair(self.rows, OUTPUT.value + HEIGHT.value)
        first = WINDOW.value + START.value
        if min(self._least[first : first + 2] + self._least[first + OFFSET.value : first + OFFSET.value + 2]) < 0:
            return True
        return bool((start + length > source).any() or (offset + target > virtual).any())

    def _is_all(self, column: int, value: int) -> bool:
        return bool(self._least[column] == value == self._greatest[column])


def _pair(rows: np.ndarray[Any, Any], column: int) -> np.ndarray[Any, Any]:
    return rows[:, column : column + 2]
