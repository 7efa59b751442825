"""``Engines``: NVIDIA's JPEG engines, which decode a whole batch of files in one call of nvJPEG.

Some GPUs (A100, H100, H200 and later data-centre models) have JPEG decoders beside their multiprocessors. The nvJPEG
library drives them, and every CUDA build of torchvision ships it. Only this file calls its C interface.
docs/notes/jpeg-engines.md compares this with other decoders.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch

from fastload.environment import FEW_QUEUES
from fastload.streams import DoneFence, Fence, fence_on_current_stream

__all__ = ["DecodingError", "Engines", "engines"]

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


class Engines:
    """The JPEG engines of one device. Calls from several threads take turns.

    Raises:
        DecodingError: the device has no JPEG engines.
    """

    def __init__(self, library: ctypes.CDLL, device: torch.device) -> None:
        self._library = library
        self._device = device
        self._lock = threading.Lock()
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        self._batch = 0
        self._grown = 0  # the size of batch that the buffers have grown for
        self._done: Fence = DoneFence()  # behind the last batch
        with torch.cuda.device(device):
            self._call("nvjpegCreateEx", HARDWARE, None, None, 0, ctypes.byref(self._handle))
            self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))

    def decode(
        self, files: np.ndarray, lengths: np.ndarray, planes: np.ndarray, pitches: np.ndarray, stream: int
    ) -> None:
        """Hand N files to the engines; work queued on ``stream`` afterwards sees the pixels.

        The engines do not wait for ``stream``: no queued work may still use the planes.

        Args:
            files: addresses on the host, uint64 (N,), in one block, which must be kept until ``stream`` has passed this
                call.
            lengths: in bytes, uint64 (N,).
            planes: addresses on the device of red, green and blue, uint64 (N, 3).
            pitches: bytes from one row to the next, uint64 (N,).
            stream: the handle of the CUDA stream that is current.

        Raises:
            DecodingError: a file is bad; the pixels of all files are undefined.
        """
        # Longest first, so that no long file starts last. It also puts files of similar length at the same index in
        # each batch: nvJPEG seems to keep a buffer for each index, and takes tens of milliseconds to enlarge one.
        order = np.argsort(-lengths.astype(np.int64), kind="stable")
        files, lengths, planes, pitches = files[order], lengths[order], planes[order], pitches[order]
        images = np.zeros((len(files), 2 * PLANES), dtype=np.uint64)  # nvjpegImage_t: the channels, then their pitches
        images[:, : planes.shape[1]] = planes
        images[:, PLANES : PLANES + planes.shape[1]] = pitches[:, None]
        with self._lock, torch.cuda.device(self._device):
            if len(files) != self._batch:
                self._done.wait()
                self._call("nvjpegDecodeBatchedInitialize", self._handle, self._state, len(files), 1, RGB)
                self._batch = len(files)
            try:
                if len(files) > self._grown:
                    self._grown = len(files)  # once, even if a file is bad
                    self._grow_buffers(files, lengths, images, stream)
                self._decode(files, lengths, images, stream)
            except DecodingError:
                self._batch = 0  # initialise again before the next batch
                raise

    def _grow_buffers(self, files: np.ndarray, lengths: np.ndarray, images: np.ndarray, stream: int) -> None:
        """Decode larger batches than this one, which leave buffers that seldom grow later.

        nvJPEG has buffers for each place of a batch, one as long as the file and others for the image. Until one of
        them has grown, it waits for all that has been queued on the device.
        """
        longer = _longer_lengths(lengths)
        for largest in _largest(images[:, 1] - images[:, 0], images[:, PLANES]):
            # What follows the file is read with it, and does no harm.
            room = (files + lengths).max() - files[largest]
            same = np.full(len(files), largest)
            self._decode(files[same], np.minimum(longer, room), images[same], stream)

    def _decode(self, files: np.ndarray, lengths: np.ndarray, images: np.ndarray, stream: int) -> None:
        """Hand a batch over, once the one before it is done.

        Handed two batches at once, possibly of two loaders, nvJPEG now and then never ends where another process uses
        the GPU too (docs/notes/jpeg-engines.md).
        """
        self._done.wait()
        addresses = (ctypes.c_void_p(array.ctypes.data) for array in (files, lengths, images))
        try:
            self._call("nvjpegDecodeBatched", self._handle, self._state, *addresses, ctypes.c_void_p(stream))
        finally:
            self._done = fence_on_current_stream(self._device)

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise DecodingError(f"{function}: {STATUS.get(status, f'status {status}')}")


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
def engines(device: torch.device) -> Engines | None:
    """The JPEG engines of ``device``; None if it has none or nvJPEG is not installed."""
    library = _library()
    if library is None or device.type != "cuda":
        return None
    try:
        found = Engines(library, device)
    except DecodingError:
        return None
    if FEW_QUEUES:
        warnings.warn(
            "CUDA was initialised before fastload was imported, so decoding and training share hardware queues and "
            "wait for each other: import fastload first, or set CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment",
            UserWarning,
            stacklevel=2,
        )
    return found


@cache
def _library() -> ctypes.CDLL | None:
    return next(filter(None, map(_load, _candidates())), None)


def _load(path: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(path)
    except OSError:
        return None


def _candidates() -> Iterator[str]:
    """Where nvJPEG may be: in NVIDIA's wheel, in torchvision's, or on the system."""
    packages = Path(torch.__file__).parents[1]  # torchvision's wheel is installed beside PyTorch's
    for pattern in ("nvidia/*/lib/libnvjpeg.so.*", "torchvision.libs/libnvjpeg*.so.*"):
        yield from sorted(map(str, packages.glob(pattern)), reverse=True)
    yield from NAMES
