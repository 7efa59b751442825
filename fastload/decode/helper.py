"""``Helper``: a second thread that hands files to the GPU's JPEG engines."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass

__all__ = ["Helper"]


@dataclass(frozen=True)
class Helper:
    """A thread that may hand every other file of a batch over, so that the batch is there sooner.

    It takes more of the host, and a state of nvJPEG's of its own. The buffers of that state grow together with those of
    the first, also for batches that need no help: when help is needed, it must not have to wait for the device.

    Attributes:
        thread: which runs what it is given, one after the other.
        is_needed: whether it helps with this batch.
    """

    thread: Executor
    is_needed: bool
