"""``Files``: JPEG files as nvJPEG is handed them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Files"]

PLANES = 4  # places for planes in nvjpegImage_t; three are used
BLOCK = 16  # rows that are coded together, if colours have half the resolution


@dataclass(frozen=True)
class Files:
    """N files for nvJPEG, the longest first.

    Attributes:
        addresses: where they are on the host, uint64 (N,).
        lengths: in bytes, int64 (N,), which nvJPEG reads as ``size_t``.
        images: what they are decoded to, uint64 (N, 8), each row an ``nvjpegImage_t``: addresses of the channels'
            planes on the device, then bytes from one row to the next.
    """

    addresses: np.ndarray
    lengths: np.ndarray
    images: np.ndarray

    @classmethod
    def of(cls, addresses: np.ndarray, lengths: np.ndarray, planes: np.ndarray, pitches: np.ndarray) -> Files:
        """Files in any order.

        Longest first, so that no long file starts last. It also puts files of similar length at the same index in each
        batch: nvJPEG seems to keep a buffer for each index, and takes tens of milliseconds to enlarge one.
        """
        lengths = lengths.astype(np.int64)
        order = np.argsort(-lengths, kind="stable")
        images = np.zeros((len(order), 2 * PLANES), dtype=np.uint64)
        images[:, : planes.shape[1]] = planes[order]
        images[:, PLANES : PLANES + planes.shape[1]] = pitches[order, None]
        return cls(addresses[order], lengths[order], images)

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.addresses, self.lengths, self.images

    @property
    def sizes(self) -> np.ndarray:
        """Of the images, int64 (3, N): bytes of a plane, bytes of a row, and rows, each in whole blocks of pixels."""
        channels = self.images.astype(np.int64)
        planes, widths = channels[:, 1] - channels[:, 0], channels[:, PLANES]
        rows = -(-planes // (widths * BLOCK)) * BLOCK
        return np.stack([rows * widths, widths, rows])

    def halves(self) -> tuple[Files, Files]:
        """Every other file, and the others: they take about as long as each other."""
        first, second = (Files(*(np.ascontiguousarray(array[start::2]) for array in self.arrays)) for start in range(2))
        return first, second

    def repeated(self, index: int, lengths: np.ndarray) -> Files:
        """One of the files in every place, said to have these lengths, but none below its own.

        nvJPEG reads what follows the file in the batch's memory with it, which does no harm. Where that ends, so do the
        lengths.
        """
        ends = self.addresses.astype(np.int64) + self.lengths
        memory = ends.max() - int(self.addresses[index])
        same = np.full(len(self), index)
        return Files(self.addresses[same], np.clip(lengths, self.lengths[index], memory), self.images[same])
