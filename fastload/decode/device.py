"""Which decoder takes which files of a batch, and where their pixels go."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg

from fastload.data.encoded import ALIGNMENT, EncodedImages, Kind, decode_on_cpu
from fastload.decode.nvjpeg import DecodingError, engines
from fastload.streams import current_stream_handle, wait_for_current_stream
from fastload.structure.ragged import Ragged

__all__ = ["decode"]

CHANNELS = 3
ROW_ALIGNMENT = 16  # bytes; rows that begin at such addresses are read in wide words
Decoded = tuple[Ragged, dict[int, str], dict[str, int]]


def decode(files: EncodedImages, device: torch.device) -> Decoded:
    """The files as RGB images on ``device``, uint8.

    Returns the images, black where a file is bad; what is wrong with each bad one; and how many were decoded where.
    Queued on the current stream; ``files`` must be kept until it has come past.
    """
    kinds = files.table[:, 4]
    problems = dict(files.problems)
    counts = {"decoded_by_worker": int((kinds == Kind.PIXELS).sum())}
    if device.type == "cpu":
        images, found = decode_on_cpu(files)
        return Ragged.of(images), problems | found, counts | {"decoded_on_cpu": int((kinds == Kind.JPEG).sum())}
    arena = DecodeBuffer(files, device)
    arena.copy_pixels()
    jpegs = (kinds == Kind.JPEG).nonzero()[:, 0].numpy()
    if len(jpegs):
        try:
            arena.decode(jpegs)
            counts["decoded_on_device"] = len(jpegs)
        except DecodingError:  # one at least is bad, and the CPU can tell which
            problems |= arena.decode_one_by_one(jpegs)
            counts["decoded_on_cpu"] = len(jpegs)
    arena.blacken(np.fromiter(problems, dtype=np.int64, count=len(problems)))
    return arena.images, problems, counts


class DecodeBuffer:
    """One block of the device's memory for all images of a batch.

    Those decoded there lie in planes, and those that a worker decoded in rows of pixels.
    """

    def __init__(self, files: EncodedImages, device: torch.device) -> None:
        self.files = files
        table = files.table.numpy()
        heights, widths = np.maximum(table[:, 2], 1), np.maximum(table[:, 3], 1)
        self.planar = table[:, 4] != Kind.PIXELS
        self.pitches = np.where(self.planar, _aligned(widths, ROW_ALIGNMENT), CHANNELS * widths)
        self.planes = heights * self.pitches
        sizes = np.where(self.planar, CHANNELS * self.planes, table[:, 1])
        ends = np.cumsum(_aligned(sizes, ALIGNMENT))
        self.starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        self.block = torch.empty(_roomy(int(ends[-1]) if len(ends) else 1), dtype=torch.uint8, device=device)
        addresses = self.block.data_ptr() + self.starts
        planar = self.planar
        strides = [np.where(planar, self.planes, 1), self.pitches, np.where(planar, 1, CHANNELS)]
        rows = np.stack([addresses, heights, widths, *strides], axis=1)
        self.images = Ragged(self.block, torch.from_numpy(rows.astype(np.int64)), CHANNELS)

    def copy_pixels(self) -> None:
        """Copy what the workers decoded."""
        for source, start in self.runs():
            target = self.block[start : start + source.stop - source.start]
            target.copy_(self.files.block[source], non_blocking=True)

    def runs(self) -> Iterator[tuple[slice, int]]:
        """What the workers decoded, neighbours together: where it lies in the files' block, and where it is to lie."""
        table = self.files.table.numpy()
        rows = np.flatnonzero(~self.planar)
        if not len(rows):
            return
        gap = self.starts[rows] - table[rows, 0]
        for run in np.split(rows, np.flatnonzero((np.diff(rows) > 1) | (np.diff(gap) != 0)) + 1):
            first, last = run[0], run[-1]
            yield slice(int(table[first, 0]), int(table[last, 0] + table[last, 1])), int(self.starts[first])

    def decode(self, rows: np.ndarray) -> None:
        device = self.block.device
        # JPEG engines heed no order of work: they write as soon as they are called. So the memory must be idle, and
        # what the allocator gives out on this stream is, once the stream is: its last readers were queued there.
        wait_for_current_stream(device)
        if (hardware := engines(device)) is None:
            decoded = _library_decoder()([self.files.file(row) for row in rows], device)
            self._put(rows, decoded)
            return
        table = self.files.table.numpy()[rows]
        planes = (self.block.data_ptr() + self.starts[rows])[:, None] + self.planes[rows][:, None] * np.arange(CHANNELS)
        hardware.decode(
            (self.files.block.data_ptr() + table[:, 0]).astype(np.uint64),
            table[:, 1].astype(np.uint64),
            planes.astype(np.uint64),
            self.pitches[rows].astype(np.uint64),
            current_stream_handle(device),
        )

    def decode_one_by_one(self, rows: np.ndarray) -> dict[int, str]:
        """Decode on the CPU; what is wrong with those that it refuses."""
        images, problems = decode_on_cpu(self.files, rows.tolist())
        good = [row not in problems for row in rows.tolist()]
        chosen = [image for image, is_good in zip(images, good, strict=True) if is_good]
        self._put(rows[np.array(good, dtype=bool)], chosen)
        return problems

    def blacken(self, rows: np.ndarray) -> None:
        for row in rows.tolist():
            self.images[row].zero_()

    def _put(self, rows: np.ndarray, images: Sequence[torch.Tensor]) -> None:
        for row, image in zip(rows.tolist(), images, strict=True):
            self.images[row].copy_(image, non_blocking=True)


def _roomy(size: int) -> int:
    """``size`` rounded up to one of eight steps between powers of two.

    Batches differ a little in size. With as many sizes as batches the allocator would often find no block of an earlier
    batch that fits, and ask CUDA for memory, which can make the device wait.
    """
    step = 1 << max(size.bit_length() - 4, 0)
    return -(-size // step) * step


def _aligned(sizes: np.ndarray, alignment: int) -> np.ndarray:
    return -(-sizes // alignment) * alignment


Decoder = Callable[[list[torch.Tensor], torch.device], Sequence[torch.Tensor]]


@cache
def _library_decoder() -> Decoder:
    """What decodes on GPUs without engines, or where nvJPEG is not found: torchcodec, or torchvision before it."""
    try:
        torchcodec = import_module("torchcodec.decoders")  # absent from some installations
    except (ImportError, RuntimeError):
        return _torchvision
    return lambda files, device: _checked(lambda: torchcodec.decode_jpeg(files, device=device))


def _torchvision(files: list[torch.Tensor], device: torch.device) -> Sequence[torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        return _checked(lambda: decode_jpeg(files, mode=ImageReadMode.RGB, device=device))


def _checked(call: Callable[[], Sequence[torch.Tensor]]) -> Sequence[torch.Tensor]:
    try:
        return call()
    except RuntimeError as error:
        raise DecodingError(str(error)) from error
