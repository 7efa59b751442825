"""``ImageTable``: what a resampling launch reads of each image: where source and output lie, and the window."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

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
    "Side",
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

WIDEST = 32  # the largest power of two that launches ask of addresses and strides
PACKED_CHANNELS = 4  # maximum for "packed"; see ``Side``


@triton.jit
def entry(row, column):
    """An entry as int32; ``row`` is a pointer."""
    return tl.load(row + column).to(tl.int32)


@triton.jit
def float_entry(row, column):
    """An entry that holds the bits of a float32."""
    return entry(row, column).to(tl.float32, bitcast=True)


class Side(NamedTuple):
    """How the sources or the outputs of a launch lie in memory, as far as a kernel is compiled for it.

    Attributes:
        layout: "planar", "packed" or "strided". Packed images are interleaved, with at most ``PACKED_CHANNELS``
            channels: with more, ``resample_generic`` would multiply too many zeros.
        is_interleaved: whether all images have several channels, interleaved without gaps (channels last).
        address: the largest power of two, up to ``WIDEST``, of which all addresses in bytes are multiples.
        channel: the same of all strides of channels, in elements.
        row: the same of all strides of rows; of outputs, of their widths too.
    """

    layout: str
    is_interleaved: bool
    address: int
    channel: int
    row: int


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
        return float(struct.unpack("f", struct.pack("i", self._greatest[FLOATS_BEGIN]))[0])

    @property
    def source(self) -> Side:
        """How the sources lie in memory."""
        return self._side(0, self._bits[ROW.value])

    @property
    def target(self) -> Side:
        """How the outputs lie in memory."""
        return self._side(
            OUTPUT_BEGINS, self._bits[OUTPUT_BEGINS + ROW.value] | self._bits[OUTPUT_BEGINS + WIDTH.value]
        )

    def _side(self, begin: int, row: int) -> Side:
        address, channel, pixel = begin + ADDRESS.value, begin + CHANNEL.value, begin + PIXEL.value
        is_interleaved = self._channels > 1 and self._is_all(channel, 1) and self._is_all(pixel, self._channels)
        packs = is_interleaved and self._channels <= PACKED_CHANNELS
        layout = "planar" if self._is_all(pixel, 1) else "packed" if packs else "strided"
        return Side(layout, is_interleaved, _divisor(self._bits[address]), _divisor(self._bits[channel]), _divisor(row))

    @property
    def longest_plane(self) -> int:
        """Upper bound of the elements that a source's plane spans, from its first row to its last."""
        return int(self._greatest[HEIGHT.value] * self._greatest[ROW.value])

    @property
    def is_padded(self) -> bool:
        """Whether some box reaches outside of its image, or some output outside of its resized box."""
        start, length, virtual, offset = range(WINDOW_BEGINS, WINDOW_BEGINS + 8, 2)
        if min(self._least[start : start + 2] + self._least[offset : offset + 2]) < 0:
            return True
        source, target = HEIGHT.value, OUTPUT_BEGINS + HEIGHT.value
        return self._ends_behind(start, length, source) or self._ends_behind(offset, target, virtual)

    def _ends_behind(self, start: int, length: int, limit: int) -> bool:
        """Whether ``start + length`` exceeds ``limit`` for some image and axis; each is a pair of columns."""
        longest, least = self._greatest, self._least
        if all(longest[start + axis] + longest[length + axis] <= least[limit + axis] for axis in range(2)):
            return False
        return bool((self._pair(start) + self._pair(length) > self._pair(limit)).any())

    def _is_all(self, column: int, value: int) -> bool:
        return bool(self._least[column] == value == self._greatest[column])

    def _pair(self, column: int) -> np.ndarray[Any, Any]:
        """A column of heights and the next, of widths, or one of y and the next, of x."""
        return self._columns[column : column + 2]


def _divisor(bits: int) -> int:
    """The largest power of two up to ``WIDEST`` that divides all numbers of which this is the bitwise or."""
    bits |= WIDEST
    return bits & -bits


def _scales(sides: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``SCALE`` and ``INVERSE``, float32 (4, N), from the sides of the boxes and of the resized boxes, (4, N)."""
    scales = np.empty_like(sides)
    np.divide(sides[:2], sides[2:], out=scales[:2])
    np.divide(1, np.maximum(scales[:2], 1), out=scales[2:])
    return scales
