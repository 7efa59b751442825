"""``Jpegs``: JPEG files as nvJPEG is handed them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastload.data.encoded import CHANNELS

__all__ = ["Jpegs"]

PLANES = 4  # places for planes in nvjpegImage_t; three are used
BLOCK = 16  # rows that are coded together, if colours have half the resolution


@dataclass(frozen=True)
class Jpegs:
    """N files for nvJPEG, the longest first.

    Attributes:
        addresses: where they are on the host, uint64 (N,).
        lengths: in bytes, int64 (N,), which nvJPEG reads as ``size_t``.
        images: what they are decoded to, uint64 (N, 8), each row an ``nvjpegImage_t``: addresses of the channels'
            planes on the device, then bytes from one row to the next.
        sizes: of the images, int64 (3, N): bytes of a plane, bytes of a row, and rows, each in whole blocks of pixels.
    """

    addresses: np.ndarray
    lengths: np.ndarray
    images: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, addresses: np.ndarray, lengths: np.ndarray, planes: np.ndarray, pitches: np.ndarray) -> Jpegs:
        """Files in any order.

        Longest first, so that no long file starts last. It also puts files of similar length at the same index in each
        batch: nvJPEG seems to keep a buffer for each index, and takes tens of milliseconds to enlarge one.

        Args:
            addresses: of the files on the host, int64 (N,).
            lengths: in bytes, int64 (N,).
            planes: addresses on the device of red, green and blue, int64 (N, 3).
            pitches: bytes from one row to the next, int64 (N,).
        """
        order = np.argsort(-lengths, kind="stable")
        images = np.zeros((len(order), 2 * PLANES), dtype=np.uint64)
        images[:, :CHANNELS] = planes[order]
        images[:, PLANES : PLANES + CHANNELS] = pitches[order, None]
        rows = -(-(planes[:, 1] - planes[:, 0]) // (pitches * BLOCK)) * BLOCK
        sizes = np.stack([rows * pitches, pitches, rows])[:, order]
        return cls(addresses[order].astype(np.uint64), lengths[order], images, sizes)

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What nvJPEG reads, each without gaps."""
        return self.addresses, self.lengths, self.images

    def moved(self, host: int, device: int) -> Jpegs:
        """The same files where they and their images lie, of addresses that count from these two."""
        images = self.images.copy()
        images[:, :CHANNELS] += np.uint64(device)
        return Jpegs(self.addresses + np.uint64(host), self.lengths, images, self.sizes)

    def halves(self) -> tuple[Jpegs, Jpegs]:
        """Every other file, and the others: they take about as long as each other."""
        return self._every_other(0), self._every_other(1)

    def _every_other(self, start: int) -> Jpegs:
        addresses, lengths, images = (np.ascontiguousarray(array[start::2]) for array in self.arrays)
        return Jpegs(addresses, lengths, images, self.sizes[:, start::2])

    def repeated(self, index: int, lengths: np.ndarray) -> Jpegs:
        """One of the files in every place, said to have these lengths, but none below its own.

        nvJPEG reads what follows the file in the batch's memory with it, which does no harm. Where that ends, so do the
        lengths.
        """
        ends = self.addresses.astype(np.int64) + self.lengths
        memory = ends.max() - int(self.addresses[index])
        same = np.full(len(self), index)
        longer = np.clip(lengths, self.lengths[index], memory)
        return Jpegs(self.addresses[same], longer, self.images[same], self.sizes[:, same])
