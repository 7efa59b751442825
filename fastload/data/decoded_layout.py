"""``DecodedLayout``: where the images of a batch of files will lie on the device.

It follows from the files' table alone, so the worker that packs them works it out and writes it behind them. In the
training process, each call of NumPy that this saves is one for which training's thread does not wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from fastload.data.encoded import ALIGNMENT, CHANNELS, EncodedImages, Kind
from fastload.data.jpegs import PLANES, Jpegs

__all__ = ["DecodedLayout"]

ROW_ALIGNMENT = 16  # bytes; kernels read rows that start at its multiples in wide words
HEAD = 3  # numbers before the arrays
COLUMNS = 6  # of ``images``


@dataclass(frozen=True)
class DecodedLayout:
    """The images of N files in one block of device memory, and what nvJPEG is handed to decode them.

    >>> import fastload as fl
    >>> layout = DecodedLayout.of(fl.collate([b"no image"]))
    >>> layout.images.tolist(), len(layout.jpegs)
    ([[0, 1, 1, 16, 16, 1]], 0)

    Images that the device decodes lie in planes, (3, H, W) with padded rows; those that a worker decoded are
    interleaved, (H, W, 3).

    Attributes:
        size: bytes of the block.
        decoded: how many of the images a worker decoded.
        images: int64 (N, 6), as the table of a ``Ragged``, with addresses that count from the block's begin.
        jpegs: the baseline JPEGs, with addresses that count from the begin of the files' block and of this one.
    """

    size: int
    decoded: int
    images: NDArray[np.int64]
    jpegs: Jpegs

    @classmethod
    def of(cls, files: EncodedImages) -> DecodedLayout:
        """That which is written behind the files, or worked out now."""
        if files.layout_at is None:
            return cls.of_table(files.table.numpy())
        return cls._read(files.block.numpy()[files.layout_at :], len(files))

    @classmethod
    def of_table(cls, table: NDArray[np.int64]) -> DecodedLayout:
        """That of the files of an ``EncodedImages.table``."""
        offsets, lengths, heights, widths, kinds = table.T
        heights, widths = np.maximum(heights, 1), np.maximum(widths, 1)
        planar = kinds != Kind.PIXELS
        pitches = np.where(planar, _align(widths, ROW_ALIGNMENT), CHANNELS * widths)
        planes = heights * pitches
        sizes = _align(np.where(planar, CHANNELS * planes, lengths), ALIGNMENT)
        starts = np.cumsum(sizes) - sizes
        strides = [np.where(planar, planes, 1), pitches, np.where(planar, 1, CHANNELS)]
        images = np.stack([starts, heights, widths, *strides], axis=1)
        rows = np.flatnonzero(kinds == Kind.JPEG)
        channels = starts[rows, None] + planes[rows, None] * np.arange(CHANNELS)
        jpegs = Jpegs.of(offsets[rows], lengths[rows], channels, pitches[rows])
        return cls(_size_class(max(int(sizes.sum()), 1)), int(np.count_nonzero(~planar)), images, jpegs)

    def written(self) -> NDArray[np.uint8]:
        """The layout as bytes, for :meth:`of`."""
        numbers = [self.size, self.decoded, len(self.jpegs)]
        arrays = (self.images, *self.jpegs.arrays, self.jpegs.sizes)
        return np.concatenate([numbers, *(array.view(np.int64).ravel() for array in arrays)]).view(np.uint8)

    @classmethod
    def _read(cls, memory: NDArray[np.uint8], count: int) -> DecodedLayout:
        numbers = memory.view(np.int64)
        size, decoded, jpegs = numbers[:HEAD].tolist()
        counts = HEAD, COLUMNS * count, jpegs, jpegs, 2 * PLANES * jpegs, 3 * jpegs
        places = pairwise(accumulate(counts))
        images, addresses, lengths, handed, sizes = (numbers[begin:end] for begin, end in places)
        handed = handed.reshape(-1, 2 * PLANES)
        files = Jpegs(addresses.view(np.uint64), lengths, handed.view(np.uint64), sizes.reshape(3, -1))
        return cls(size, decoded, images.reshape(-1, COLUMNS), files)


def _size_class(size: int) -> int:
    """``size`` rounded up to one of eight sizes between two powers of two.

    Batches differ a little in size. Rounded, the allocator finds a block of an earlier batch that fits. Otherwise it
    would often ask CUDA for memory, which can make the device wait.
    """
    step = 1 << max(size.bit_length() - 4, 0)
    return -(-size // step) * step


def _align(sizes: NDArray[np.int64], alignment: int) -> NDArray[np.int64]:
    return -(-sizes // alignment) * alignment
