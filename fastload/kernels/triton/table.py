"""``ImageTable``: what a resampling launch reads of each image: where source and output lie, and the window."""

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
    "ImageTable",
    "entry",
    "float_entry",
]

# Columns of the source: address, height and width, strides of channel, row and pixel. OUTPUT + each: of the output.
ADDRESS, HEIGHT, WIDTH, CHANNEL, ROW, PIXEL = (tl.constexpr(i) for i in range(6))
OUTPUT = tl.constexpr(6)
# WINDOW + each: columns of the window, pairs of y and x.
WINDOW = tl.constexpr(12)
START, LENGTH, VIRTUAL, OFFSET, FLIP, SCALE, INVERSE = (tl.constexpr(i) for i in range(0, 14, 2))
COLUMNS = tl.constexpr(26)

OUTPUT_BEGINS, WINDOW_BEGINS, FLOATS_BEGIN = OUTPUT.value, WINDOW.value, WINDOW.value + SCALE.value
SIDES = slice(WINDOW_BEGINS + LENGTH.value, WINDOW_BEGINS + OFFSET.value)

PACKED_CHANNELS = 4  # maximum for "packed"; see ``ImageTable.layout``


@triton.jit
def entry(row, column):
    """An entry as int32; ``row`` is a pointer."""
    return tl.load(row + column).to(tl.int32)


@triton.jit
def float_entry(row, column):
    """An entry that holds the bits of a float32."""
    return entry(row, column).to(tl.float32, bitcast=True)


class ImageTable:
    """What a resampling kernel reads about each image, and what its launch reads about all of them.

    The launch chooses specialisation constants by a column's minimum, maximum or bitwise or. These are computed once,
    for all columns together.

    Attributes:
        rows: int64 (N, COLUMNS), a row for each image. ``SCALE`` is pixels of the box per pixel of the resized box,
            and ``INVERSE`` is ``1 / max(SCALE, 1)``; both are stored as the bits of a float32.
    """

    def __init__(self, images: Ragged, outs: Ragged, windows: torch.Tensor) -> None:
        columns = np.empty((COLUMNS.value, len(images)), dtype=np.int64)  # NumPy is fastest along the images
        columns[:OUTPUT_BEGINS] = images.table.numpy().T
        columns[OUTPUT_BEGINS:WINDOW_BEGINS] = outs.table.numpy().T
        columns[WINDOW_BEGINS:FLOATS_BEGIN] = windows.numpy().T
        columns[FLOATS_BEGIN:] = _scales(columns[SIDES].astype(np.float32)).view(np.int32)
        self.rows = np.ascontiguousarray(columns.T)
        self._columns = columns
        self._channels = images.channels
        self._least = columns.min(1, initial=2**62).tolist()
        self._greatest = columns.max(1, initial=0).tolist()
        self._bits = np.bitwise_or.reduce(columns, 1, initial=0).tolist()

    @property
    def largest_output(self) -> tuple[int, int]:
        """The maximum height and the maximum width of an output."""
        return self._greatest[OUTPUT.value + HEIGHT.value], self._greatest[OUTPUT.value + WIDTH.value]

    @property
    def largest_scale(self) -> float:
        """The maximum vertical scale: rows of a box per row of its resized box."""
        bits: np.float32 = np.int32(self._greatest[WINDOW.value + SCALE.value]).view(np.float32)
        return float(bits)

    def layout(self, side: int) -> str:
        """Memory layout of the sources (``side`` 0) or outputs (``side`` ``OUTPUT``): "planar", "packed" or "strided".

        Packed images are interleaved, with at most ``PACKED_CHANNELS`` channels: with more, ``resample_generic`` would
        multiply too many zeros.
        """
        if self._is_all(side + PIXEL.value, 1):
            return "planar"
        return "packed" if self.is_interleaved(side) and self._channels <= PACKED_CHANNELS else "strided"

    def is_interleaved(self, side: int) -> bool:
        """Whether all images have several channels, interleaved without gaps (channels last)."""
        packed = self._is_all(side + CHANNEL.value, 1) and self._is_all(side + PIXEL.value, self._channels)
        return packed and self._channels > 1

    def bits(self, side: int, *columns: tl.constexpr) -> int:
        """Bitwise or of all values of these columns, of the sources (``side`` 0) or outputs (``OUTPUT``)."""
        found = 0
        for column in columns:
            found |= self._bits[side + column.value]
        return found

    @property
    def longest_plane(self) -> int:
        """Upper bound of the elements that a source's plane spans, from its first row to its last."""
        return int(self._greatest[HEIGHT.value] * self._greatest[ROW.value])

    @property
    def is_padded(self) -> bool:
        """Whether some box reaches outside of its image, or some output outside of its resized box."""
        start, length, virtual, offset = (self._pair(WINDOW_BEGINS + column) for column in range(0, 8, 2))
        source, target = self._pair(HEIGHT.value), self._pair(OUTPUT_BEGINS + HEIGHT.value)
        first = WINDOW_BEGINS + START.value
        if min(self._least[first : first + 2] + self._least[first + OFFSET.value : first + OFFSET.value + 2]) < 0:
            return True
        return bool((start + length > source).any() or (offset + target > virtual).any())

    def _is_all(self, column: int, value: int) -> bool:
        return bool(self._least[column] == value == self._greatest[column])

    def _pair(self, column: int) -> np.ndarray[Any, Any]:
        """A column of heights and the next, of widths, or one of y and the next, of x."""
        return self._columns[column : column + 2]


def _scales(sides: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``SCALE`` and ``INVERSE``, float32 (4, N), from the sides of the boxes and of the resized boxes, (4, N)."""
    scales = np.empty_like(sides)
    np.divide(sides[:2], sides[2:], out=scales[:2])
    np.divide(1, np.maximum(scales[:2], 1), out=scales[2:])
    return scales
