"""``decode``: the files of a batch to pixels on a device, each by the decoder that takes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from fastload.data.encoded import ALIGNMENT, CHANNELS, EncodedImages, Kind
from fastload.data.jpeg_library import library_decoder
from fastload.decode.cpu import decode_on_cpu
from fastload.decode.engines import engines
from fastload.decode.helper import Helper
from fastload.decode.nvjpeg import DecodingError
from fastload.streams import wait_for_current_stream
from fastload.structure.ragged import Ragged

__all__ = ["DecodeBuffer", "decode"]

ROW_ALIGNMENT = 16  # bytes; kernels read rows that start at its multiples in wide words
Decoded = tuple[Ragged, dict[int, str], dict[str, int]]


def decode(files: EncodedImages, device: torch.device, helper: Helper | None = None) -> Decoded:
    """Decode the files of a batch on ``device``; a ``helper`` may hand some of them to its JPEG engines.

    >>> from fastload import collate
    >>> images, problems, counts = decode(collate([b"no image"]), torch.device("cpu"))
    >>> images.sizes, counts
    (tensor([[1, 1]]), {'decoded_by_worker': 0, 'decoded_on_cpu': 0})

    The work is queued on the current stream; ``files`` must be kept until the stream has done it.

    Returns:
        The RGB images, uint8, black where a file is bad; the reason for each bad file, by its index in the batch; and
        how many files each decoder decoded.
    """
    kinds = files.table.numpy()[:, 4]  # NumPy's small calls keep the interpreter's lock, PyTorch's wait for it
    problems = dict(files.problems)
    counts = {"decoded_by_worker": int(np.count_nonzero(kinds == Kind.PIXELS))}
    jpegs = np.flatnonzero(kinds == Kind.JPEG)
    if device.type == "cpu":
        images, found = decode_on_cpu(files)
        return Ragged.of(images), problems | found, counts | {"decoded_on_cpu": len(jpegs)}
    buffer = DecodeBuffer(files, device)
    buffer.copy_pixels()
    if len(jpegs):
        try:
            buffer.decode(jpegs, helper)
            counts["decoded_on_device"] = len(jpegs)
        except DecodingError:  # at least one file is bad; decoding on the CPU tells which
            problems |= buffer.fall_back_to_cpu(jpegs)
            counts["decoded_on_cpu"] = len(jpegs)
    buffer.blacken(np.fromiter(problems, dtype=np.int64, count=len(problems)))
    return buffer.images, problems, counts


class DecodeBuffer:
    """One block of device memory that holds the decoded images of a batch.

    Images that the device decodes lie in planes, (3, H, W) with padded rows; those that a worker decoded are
    interleaved, (H, W, 3).

    Attributes:
        block: the memory, uint8 (bytes,).
        images: the images in it.
    """

    def __init__(self, files: EncodedImages, device: torch.device) -> None:
        self.files = files
        table = files.table.numpy()
        heights, widths = np.maximum(table[:, 2], 1), np.maximum(table[:, 3], 1)
        self.planar = table[:, 4] != Kind.PIXELS
        self.pitches = np.where(self.planar, _align(widths, ROW_ALIGNMENT), CHANNELS * widths)
        self.planes = heights * self.pitches
        sizes = np.where(self.planar, CHANNELS * self.planes, table[:, 1])
        ends = np.cumsum(_align(sizes, ALIGNMENT))
        self.starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        self.block = torch.empty(_size_class(int(ends[-1]) if len(ends) else 1), dtype=torch.uint8, device=device)
        addresses = self.block.data_ptr() + self.starts
        planar = self.planar
        strides = [np.where(planar, self.planes, 1), self.pitches, np.where(planar, 1, CHANNELS)]
        rows = np.stack([addresses, heights, widths, *strides], axis=1)
        self.images = Ragged(self.block, torch.from_numpy(rows.astype(np.int64)), CHANNELS)

    def copy_pixels(self) -> None:
        """Copy the images that workers decoded to the device."""
        for source, start in self.runs():
            target = self.block[start : start + source.stop - source.start]
            target.copy_(self.files.block[source], non_blocking=True)

    def runs(self) -> Iterator[tuple[slice, int]]:
        """Images that workers decoded, neighbours as one run: its slice of the files' block, and its start in this."""
        table = self.files.table.numpy()
        rows = np.flatnonzero(~self.planar)
        if not len(rows):
            return
        gap = self.starts[rows] - table[rows, 0]
        for run in np.split(rows, np.flatnonzero((np.diff(rows) > 1) | (np.diff(gap) != 0)) + 1):
            first, last = run[0], run[-1]
            yield slice(int(table[first, 0]), int(table[last, 0] + table[last, 1])), int(self.starts[first])

    def decode(self, rows: np.ndarray, helper: Helper | None = None) -> None:
        """Decode JPEG files on the device: on its JPEG engines, or by a library where there are none.

        Raises:
            DecodingError: at least one file is bad; the pixels of all ``rows`` are undefined.
        """
        device = self.block.device
        # JPEG engines ignore stream order: they write as soon as they are called, so nothing may still use the memory.
        # The allocator hands it out on this stream, on which its last readers were queued: waiting for the stream is
        # enough.
        stream = wait_for_current_stream(device)
        if (hardware := engines(device)) is None:
            self._copy_images(rows, self._decode_by_library(rows))
            return
        table = self.files.table.numpy()[rows]
        planes = (self.block.data_ptr() + self.starts[rows])[:, None] + self.planes[rows][:, None] * np.arange(CHANNELS)
        hardware.decode(
            (self.files.block.data_ptr() + table[:, 0]).astype(np.uint64),
            table[:, 1].astype(np.uint64),
            planes.astype(np.uint64),
            self.pitches[rows].astype(np.uint64),
            stream,
            helper,
        )

    def fall_back_to_cpu(self, rows: np.ndarray) -> dict[int, str]:
        """Decode files on the CPU, and return the reason for each bad one, by its index in the batch."""
        images, problems = decode_on_cpu(self.files, rows.tolist())
        good = [row not in problems for row in rows.tolist()]
        chosen = [image for image, is_good in zip(images, good, strict=True) if is_good]
        self._copy_images(rows[np.array(good, dtype=bool)], chosen)
        return problems

    def blacken(self, rows: np.ndarray) -> None:
        """Set some images to 0."""
        for row in rows.tolist():
            self.images[row].zero_()

    def _decode_by_library(self, rows: np.ndarray) -> Sequence[torch.Tensor]:
        try:
            return library_decoder()([self.files.file(row) for row in rows], self.block.device)
        except RuntimeError as error:
            raise DecodingError(str(error)) from error

    def _copy_images(self, rows: np.ndarray, images: Sequence[torch.Tensor]) -> None:
        for row, image in zip(rows.tolist(), images, strict=True):
            self.images[row].copy_(image, non_blocking=True)


def _size_class(size: int) -> int:
    """``size`` rounded up to one of eight sizes between two powers of two.

    Batches differ a little in size. Rounded, the allocator finds a block of an earlier batch that fits. Otherwise it
    would often ask CUDA for memory, which can make the device wait.
    """
    step = 1 << max(size.bit_length() - 4, 0)
    return -(-size // step) * step


def _align(sizes: np.ndarray, alignment: int) -> np.ndarray:
    return -(-sizes // alignment) * alignment
