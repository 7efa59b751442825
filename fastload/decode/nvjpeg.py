"""nvJPEG, the library that drives NVIDIA's JPEG engines: a ``State`` of it decodes a batch of files in one call.

Every CUDA build of torchvision ships it. Only this file calls its C interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import torch

from fastload.data.jpegs import Jpegs
from fastload.decode.room import NO_ROOM

__all__ = ["DecodingError", "Library", "State", "library"]

HARDWARE = 3  # nvjpegBackend_t
RGB = 3  # nvjpegOutputFormat_t: planes of red, green and blue
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


class State:
    """A state of nvJPEG's, which has buffers of its own, and decodes one batch after the other."""

    def __init__(self, library: Library, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._handle, self._state = handle, ctypes.c_void_p()
        self._batch = 0
        self._room = NO_ROOM
        library.call("nvjpegJpegStateCreate", handle, ctypes.byref(self._state))

    def prepare(self, files: Jpegs, stream: int, wait: Callable[[], object]) -> bool:
        """Let buffers grow for as many files as these, as long and as large; return whether they had to.

        ``wait`` waits for what was queued on ``stream``.
        """
        if self._room.holds(files):
            return False
        room, batches = self._room.larger(files)
        try:
            self.set_batch(len(files))
            for larger in batches:
                self.decode(larger, stream)
                wait()
        except DecodingError:  # there may be memory for these files, and if one is bad, the next call says so
            wait()
        self._room = room  # also if it failed: the next batch would fail likewise
        return True

    def set_batch(self, size: int) -> None:
        """Say how many files the next batches have."""
        if size != self._batch:
            self._batch = 0  # say it again before the next batch if this fails
            self._library.call("nvjpegDecodeBatchedInitialize", self._handle, self._state, size, 1, RGB)
            self._batch = size

    def decode(self, files: Jpegs, stream: int) -> None:
        """Queue the decoding of as many files as :meth:`set_batch` has said."""
        addresses = (ctypes.c_void_p(array.ctypes.data) for array in files.arrays)
        try:
            self._library.call("nvjpegDecodeBatched", self._handle, self._state, *addresses, ctypes.c_void_p(stream))
        except DecodingError:
            self._batch, self._room = 0, NO_ROOM  # begin anew with the next batch
            raise


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
