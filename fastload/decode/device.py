"""``decode``: the files of a batch to pixels on a device, each by the decoder that takes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from fastload.data.decoded_layout import DecodedLayout
from fastload.data.encoded import CHANNELS, EncodedImages, Kind
from fastload.data.jpeg_library import library_decoder
from fastload.decode.cpu import decode_on_cpu
from fastload.decode.engines import engines
from fastload.decode.helper import Helper
from fastload.decode.nvjpeg import DecodingError
from fastload.streams import wait_for_current_stream
from fastload.structure.ragged import Ragged

__all__ = ["DecodeBuffer", "decode"]

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
    layout = DecodedLayout.of(files)
    problems = dict(files.problems)
    counts = {"decoded_by_worker": layout.decoded}
    if device.type == "cpu":
        images, found = decode_on_cpu(files)
        return Ragged.of(images), problems | found, counts | {"decoded_on_cpu": len(layout.jpegs)}
    buffer = DecodeBuffer(files, layout, device)
    buffer.copy_pixels()
    if len(layout.jpegs):
        try:
            buffer.decode(helper)
            counts["decoded_on_device"] = len(layout.jpegs)
        except DecodingError:  # at least one file is bad; decoding on the CPU tells which
            problems |= buffer.fall_back_to_cpu()
            counts["decoded_on_cpu"] = len(layout.jpegs)
    buffer.blacken(problems)
    return buffer.images, problems, counts


class DecodeBuffer:
    """One block of device memory that holds the decoded images of a batch, where ``layout`` says.

    Attributes:
        block: the memory, uint8 (bytes,).
        images: the images in it.
    """

    def __init__(self, files: EncodedImages, layout: DecodedLayout, device: torch.device) -> None:
        self.files = files
        self.layout = layout
        self.block = torch.empty(layout.size, dtype=torch.uint8, device=device)
        table = layout.images.copy()
        table[:, 0] += self.block.data_ptr()
        self.images = Ragged(self.block, torch.from_numpy(table), CHANNELS)

    def copy_pixels(self) -> None:
        """Copy the images that workers decoded to the device."""
        for source, start in self.runs():
            target = self.block[start : start + source.stop - source.start]
            target.copy_(self.files.block[source], non_blocking=True)

    def runs(self) -> Iterator[tuple[slice, int]]:
        """Images that workers decoded, neighbours as one run: its slice of the files' block, and its start in this."""
        if not self.layout.decoded:
            return
        table, starts = self.files.table.numpy(), self.layout.images[:, 0]
        rows = self._rows_of(Kind.PIXELS)
        gap = starts[rows] - table[rows, 0]
        for run in np.split(rows, np.flatnonzero((np.diff(rows) > 1) | (np.diff(gap) != 0)) + 1):
            first, last = run[0], run[-1]
            yield slice(int(table[first, 0]), int(table[last, 0] + table[last, 1])), int(starts[first])

    def decode(self, helper: Helper | None = None) -> None:
        """Decode the JPEG files on the device: on its JPEG engines, or by a library where there are none.

        Raises:
            DecodingError: at least one file is bad; the pixels of all of them are undefined.
        """
        device = self.block.device
        # JPEG engines ignore stream order: they write as soon as they are called, so nothing may still use the memory.
        # The allocator hands it out on this stream, on which its last readers were queued: waiting for the stream is
        # enough.
        stream = wait_for_current_stream(device)
        if (hardware := engines(device)) is None:
            rows = self._rows_of(Kind.JPEG)
            self._copy_images(rows, self._decode_by_library(rows))
            return
        files = self.layout.jpegs.moved(self.files.block.data_ptr(), self.block.data_ptr())
        hardware.decode(files, stream, helper)

    def fall_back_to_cpu(self) -> dict[int, str]:
        """Decode the JPEG files on the CPU, and return the reason for each bad one, by its index in the batch."""
        rows = self._rows_of(Kind.JPEG)
        images, problems = decode_on_cpu(self.files, rows.tolist())
        good = [row not in problems for row in rows.tolist()]
        chosen = [image for image, is_good in zip(images, good, strict=True) if is_good]
        self._copy_images(rows[np.array(good, dtype=bool)], chosen)
        return problems

    def blacken(self, rows: Iterable[int]) -> None:
        """Set some images to 0."""
        for row in rows:
            self.images[row].zero_()

    def _rows_of(self, kind: Kind) -> np.ndarray:
        return np.flatnonzero(self.files.table.numpy()[:, 4] == kind)

    def _decode_by_library(self, rows: np.ndarray) -> Sequence[torch.Tensor]:
        try:
            return library_decoder()([self.files.file(row) for row in rows], self.block.device)
        except RuntimeError as error:
            raise DecodingError(str(error)) from error

    def _copy_images(self, rows: np.ndarray, images: Sequence[torch.Tensor]) -> None:
        for row, image in zip(rows.tolist(), images, strict=True):
            self.images[row].copy_(image, non_blocking=True)
