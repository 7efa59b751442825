"""nvJPEG, the library that drives NVIDIA's JPEG engines: a ``State`` of it decodes a batch of ``Files`` in one call.

Every CUDA build of torchvision ships it. Only this file calls its C interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

__all__ = ["DecodingError", "Files", "Library", "State", "library"]

HARDWARE = 3  # nvjpegBackend_t
RGB = 3  # nvjpegOutputFormat_t: planes of red, green and blue
PLANES = 4  # places for planes in nvjpegImage_t; three are used
COMMON = 2  # times the mean area of a batch; buffers are not made for larger images, of which there may be few
LONGER = 8  # in a later batch a place may get a file as long as those of an eighth of the batch further up in this one
MARGIN = 2  # and longer, but seldom by more than this factor
NAMES = ("libnvjpeg.so.13", "libnvjpeg.so.12")
STATUS = {
    1: "not initialised",
    2: "invalid parameter",
    3: "bad JPEG",
    4: "JPEG not supported",
    5: "out of memory",
    6: "execution failed",
    7: "architecture mismatch",
    8: "internal error",
    9: "not implemented",
    10: "incomplete bitstream",
}


class DecodingError(RuntimeError):
    """A batch that could not be decoded on the device, which does not say which of its files is bad."""


class Library:
    """nvJPEG's functions, by name.

    Raises:
        OSError: there is no such library.
    """

    def __init__(self, path: str) -> None:
        self._functions = ctypes.CDLL(path)

    def call(self, function: str, *arguments: object) -> None:
        """Call a function, without the interpreter's lock.

        Raises:
            DecodingError: the function says that it failed.
        """
        status = getattr(self._functions, function)(*arguments)
        if status:
            raise DecodingError(f"{function}: {STATUS.get(status, f'status {status}')}")


@dataclass(frozen=True)
class Files:
    """Files for nvJPEG, the longest first: where they are, how long, and what they are decoded to."""

    addresses: np.ndarray
    lengths: np.ndarray
    images: np.ndarray  # nvjpegImage_t: the channels, then their pitches

    @classmethod
    def of(cls, addresses: np.ndarray, lengths: np.ndarray, planes: np.ndarray, pitches: np.ndarray) -> Files:
        """Files in any order.

        Longest first, so that no long file starts last. It also puts files of similar length at the same index in each
        batch: nvJPEG seems to keep a buffer for each index, and takes tens of milliseconds to enlarge one.
        """
        order = np.argsort(-lengths.astype(np.int64), kind="stable")
        images = np.zeros((len(order), 2 * PLANES), dtype=np.uint64)
        images[:, : planes.shape[1]] = planes[order]
        images[:, PLANES : PLANES + planes.shape[1]] = pitches[order, None]
        return cls(addresses[order], lengths[order], images)

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.addresses, self.lengths, self.images

    def halves(self) -> tuple[Files, Files]:
        """Every other file, and the others: they take about as long as each other."""
        first, second = (Files(*(np.ascontiguousarray(array[start::2]) for array in self.arrays)) for start in range(2))
        return first, second


class State:
    """A state of nvJPEG's, which has buffers of its own, and decodes one batch after the other.

    :meth:`prepare` comes before each :meth:`decode`.
    """

    def __init__(self, library: Library, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._handle, self._state = handle, ctypes.c_void_p()
        self._batch = 0
        self._grown = 0  # the size of batch that the buffers have grown for
        library.call("nvjpegJpegStateCreate", handle, ctypes.byref(self._state))

    def prepare(self, files: Files, stream: int, wait: Callable[[], object]) -> None:
        """Get ready for as many files as these. ``wait`` waits for what was queued on ``stream``."""
        if len(files) != self._batch:
            self._library.call("nvjpegDecodeBatchedInitialize", self._handle, self._state, len(files), 1, RGB)
            self._batch = len(files)
        if len(files) > self._grown:
            self._grown = len(files)  # once, even if a file is bad
            for larger in _larger(files):
                self.decode(larger, stream)
                wait()

    def decode(self, files: Files, stream: int) -> None:
        """Queue the decoding of as many files as it is ready for."""
        addresses = (ctypes.c_void_p(array.ctypes.data) for array in files.arrays)
        try:
            self._library.call("nvjpegDecodeBatched", self._handle, self._state, *addresses, ctypes.c_void_p(stream))
        except DecodingError:
            self._batch = 0  # initialise again before the next batch
            raise


def _larger(files: Files) -> Iterator[Files]:
    """Batches larger than this one. Decoded once, they leave buffers that seldom grow later.

    nvJPEG has buffers for each place of a batch, one as long as the file and others for the image. Until one of them
    has grown, it waits for all that has been queued on the device.
    """
    longer = _longer_lengths(files.lengths)
    for largest in _largest(files.images[:, 1] - files.images[:, 0], files.images[:, PLANES]):
        # What follows the file is read with it, and does no harm.
        room = (files.addresses + files.lengths).max() - files.addresses[largest]
        same = np.full(len(files), largest)
        yield Files(files.addresses[same], np.minimum(longer, room), files.images[same])


def _longer_lengths(lengths: np.ndarray) -> np.ndarray:
    """For each place of a batch a length that its files seldom have in later ones; ``lengths``: the longest first."""
    places = np.arange(len(lengths))
    return MARGIN * lengths[np.maximum(places - len(places) // LONGER, 0)]


def _largest(planes: np.ndarray, widths: np.ndarray) -> list[int]:
    """The images of a batch with the most pixels, with the longest rows and with the most rows, but for huge ones.

    ``planes`` are sizes of planes in bytes, and ``widths`` their rows'.
    """
    common = np.flatnonzero(planes <= COMMON * planes.mean())
    return [int(common[np.argmax(sizes[common])]) for sizes in (planes, widths, planes // widths)]


@cache
def library() -> Library | None:
    """The library; None if it is not installed."""
    return next(filter(None, map(_load, _candidates())), None)


def _load(path: str) -> Library | None:
    try:
        return Library(path)
    except OSError:
        return None


def _candidates() -> Iterator[str]:
    """Where nvJPEG may be: in NVIDIA's wheel, in torchvision's, or on the system."""
    packages = Path(torch.__file__).parents[1]  # torchvision's wheel is installed beside PyTorch's
    for pattern in ("nvidia/*/lib/libnvjpeg.so.*", "torchvision.libs/libnvjpeg*.so.*"):
        yield from sorted(map(str, packages.glob(pattern)), reverse=True)
    yield from NAMES
