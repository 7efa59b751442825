"""NVIDIA's JPEG engines, through nvJPEG: a whole batch of files to pixels on the device in one call.

Some GPUs (A100, H100, H200 and later data-centre models) decode JPEG beside their multiprocessors. nvJPEG drives the
engines, and every CUDA build of torchvision brings it along. This file declares the six functions of its C interface
that are needed, and nothing else knows of them. docs/decoding.md tells how this was found to be the fastest way.
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
import torchvision

from fastload.environment import FEW_QUEUES

__all__ = ["DecodingError", "Engines", "engines"]

HARDWARE = 3  # nvjpegBackend_t
RGB = 3  # nvjpegOutputFormat_t: planes of red, green and blue
PLANES = 4  # that nvjpegImage_t has room for, of which three are used
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
    """A batch that the engines did not decode; which of its files is at fault they do not tell."""


class Engines:
    """The JPEG engines of one device, for one thread at a time.

    Raises:
        DecodingError: the device has none.
    """

    def __init__(self, library: ctypes.CDLL, device: torch.device) -> None:
        self._library = library
        self._device = device
        self._turn = threading.Lock()
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        self._batch = 0
        with torch.cuda.device(device):
            self._call("nvjpegCreateEx", HARDWARE, None, None, 0, ctypes.byref(self._handle))
            self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))

    def decode(
        self, files: np.ndarray, lengths: np.ndarray, planes: np.ndarray, pitches: np.ndarray, stream: int
    ) -> None:
        """Decode N files, and return when the last has been handed to the engines; ``stream`` waits for the end.

        The engines do not wait for ``stream``: nothing queued anywhere may still use the planes.

        Args:
            files: uint64 (N,), addresses on the host; the files must stay there until the stream has come past.
            lengths: uint64 (N,), in bytes.
            planes: uint64 (N, 3), addresses on the device of red, green and blue.
            pitches: uint64 (N,), bytes from row to row.
            stream: the handle of a CUDA stream.

        Raises:
            DecodingError: nothing can be said of what lies in the planes then.
        """
        # The longest first, so that none is left for the end. nvJPEG also seems to keep a buffer for each place of a
        # batch, and to replace one that is too small, in tens of milliseconds: so a place needs the same each time.
        order = np.argsort(-lengths.astype(np.int64), kind="stable")
        files, lengths, planes, pitches = files[order], lengths[order], planes[order], pitches[order]
        images = np.zeros((len(files), 2 * PLANES), dtype=np.uint64)  # nvjpegImage_t: the channels, then their pitches
        images[:, : planes.shape[1]] = planes
        images[:, PLANES : PLANES + planes.shape[1]] = pitches[:, None]
        with self._turn, torch.cuda.device(self._device):
            if len(files) != self._batch:
                self._call("nvjpegDecodeBatchedInitialize", self._handle, self._state, len(files), 1, RGB)
                self._batch = len(files)
            try:
                self._call(
                    "nvjpegDecodeBatched",
                    self._handle,
                    self._state,
                    *(ctypes.c_void_p(array.ctypes.data) for array in (files, lengths, images)),
                    ctypes.c_void_p(stream),
                )
            except DecodingError:
                self._batch = 0  # begin afresh
                raise

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise DecodingError(f"{function}: {STATUS.get(status, f'status {status}')}")


@cache
def engines(device: torch.device) -> Engines | None:
    """The JPEG engines of ``device``; None if it has none, or nvJPEG is not found."""
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
    return next(filter(None, map(_loaded, _candidates())), None)


def _loaded(path: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(path)
    except OSError:
        return None


def _candidates() -> Iterator[str]:
    """Where nvJPEG may lie: as NVIDIA's wheel, in torchvision's, or on the system."""
    packages = Path(torchvision.__file__).parents[1]
    for pattern in ("nvidia/*/lib/libnvjpeg.so.*", "torchvision.libs/libnvjpeg*.so.*"):
        yield from sorted(map(str, packages.glob(pattern)), reverse=True)
    yield from NAMES
