"""``Engines``: NVIDIA's JPEG engines, which decode a whole batch of files.

Some GPUs (A100, H100, H200 and later data-centre models) have JPEG decoders beside their multiprocessors.
docs/notes/jpeg-engines.md compares this with other decoders.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from concurrent.futures import wait
from functools import cache

import torch

from fastload.data.jpegs import Jpegs
from fastload.decode.helper import Helper
from fastload.decode.nvjpeg import HARDWARE, DecodingError, Library, State, library
from fastload.environment import FEW_QUEUES
from fastload.interrupts import interrupt_cores
from fastload.streams import DoneFence, Fence, fence_on_current_stream, wait_for_current_stream

__all__ = ["Engines", "engines"]

WORTH_TWO = 32  # files, at least, for a second thread: nvJPEG takes a millisecond for so many


class Engines:
    """The JPEG engines of one device. Calls from several threads take turns.

    A batch is handed over once the one before it is done. If one ``State`` is handed two at once, possibly by two
    loaders, nvJPEG now and then never ends where another process uses the GPU too (docs/notes/jpeg-engines.md).

    Raises:
        DecodingError: the device has no JPEG engines.
    """

    def __init__(self, nvjpeg: Library, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._done: Fence = DoneFence()  # behind the last batch
        self._is_helped = True  # until memory for a second state, or a second thread, is not to be had
        self._handle = ctypes.c_void_p()
        with torch.cuda.device(device):
            nvjpeg.call("nvjpegCreateEx", HARDWARE, None, None, 0, ctypes.byref(self._handle))
            self._states = State(nvjpeg, self._handle), State(nvjpeg, self._handle)

    def decode(self, files: Jpegs, stream: int, helper: Helper | None = None) -> None:
        """Hand files to the engines; work queued on ``stream`` afterwards sees the pixels.

        The engines do not wait for ``stream``: no queued work may still use the planes.

        Args:
            files: whose memory on the host, one block, must be kept until ``stream`` has passed this call.
            stream: the handle of the CUDA stream that is current.
            helper: a second thread, which this batch or a later one needs.

        Raises:
            DecodingError: a file is bad; the pixels of all files are undefined.
        """
        with self._lock, torch.cuda.device(self._device):
            self._done.wait()
            try:
                self._decode(files, stream, helper if self._is_helped and len(files) >= WORTH_TWO else None)
            finally:
                self._done = fence_on_current_stream(self._device)

    def _decode(self, files: Jpegs, stream: int, helper: Helper | None) -> None:
        first, second = self._states
        has_grown = first.prepare(files, stream, self._wait)
        if helper is not None and (has_grown or helper.is_needed):
            mine, others = files.halves()
            second.prepare(others, stream, self._wait)
            if helper.is_needed:
                self._decode_by_two(files, mine, others, stream, helper)
                return
        first.set_batch(len(files))
        first.decode(files, stream)

    def _decode_by_two(self, files: Jpegs, mine: Jpegs, others: Jpegs, stream: int, helper: Helper) -> None:
        try:
            self._decode_halves(mine, others, stream, helper)
        except DecodingError:
            self._wait()
            self._decode(files, stream, None)  # raises it again if a file is bad
            self._is_helped = False

    def _decode_halves(self, mine: Jpegs, others: Jpegs, stream: int, helper: Helper) -> None:
        first, second = self._states
        first.set_batch(len(mine))
        second.set_batch(len(others))
        try:
            helped = helper.thread.submit(self._help, others, stream)
        except RuntimeError as error:
            self._is_helped = False  # the thread has kept the call, so it must not be given another
            raise DecodingError("no second thread can be started") from error
        try:
            first.decode(mine, stream)
        finally:
            wait([helped])
        helped.result()

    def _help(self, half: Jpegs, stream: int) -> None:
        interrupt_cores().leave()
        with torch.cuda.device(self._device):
            self._states[1].decode(half, stream)

    def _wait(self) -> None:
        wait_for_current_stream(self._device)


_making = threading.Lock()


def engines(device: torch.device) -> Engines | None:
    """The JPEG engines of ``device``; None if it has none or nvJPEG is not installed."""
    with _making:  # two threads that ask at the same time get the same
        return _engines(device)


@cache
def _engines(device: torch.device) -> Engines | None:
    nvjpeg = library()
    if nvjpeg is None or device.type != "cuda":
        return None
    try:
        found = Engines(nvjpeg, device)
    except DecodingError:
        return None
    if FEW_QUEUES:
        warnings.warn(
            "CUDA was initialised before fastload was imported, so decoding and training share hardware queues and "
            "wait for each other: import fastload first, or set CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment",
            UserWarning,
            stacklevel=3,
        )
    return found
