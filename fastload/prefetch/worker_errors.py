"""The errors of a loader: the worker that died is named, and a StopIteration of a sample does not end the epoch."""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils.fetch import _MapDatasetFetcher

__all__ = ["clear_loader_frames", "explained", "is_of_a_sample"]

# A worker that is killed closes its connections a moment before it has ended: how long to wait for that, in seconds.
MOMENT = 5.0

# The modules in which a tensor is received from the worker that made it.
RECEIVING = ("multiprocessing.resource_sharer", "fastload.data.shared_memory")

RERAISE = ExceptionWrapper.reraise.__code__

# What a StopIteration passes through if it comes from a data set or a collate function, here or in a worker.
LOADING = {_MapDatasetFetcher.fetch.__code__, RERAISE}

FULL = (
    "Tensors of workers lie in /dev/shm, which is full: give it more room (docker run --shm-size=8g), or let fewer or "
    "smaller batches wait there (num_workers, prefetch_factor, batch_size)"
)


def explained(batches: Any, error: BaseException) -> BaseException:
    """The error to raise for one that ended a pass over ``batches``, the loader's iterator.

    If a worker died, it is a RuntimeError that names the worker, caused by ``error``; else ``error`` itself. A tensor
    that a worker sent is received from it when it is unpickled. If the worker is killed meanwhile, ``DataLoader``
    raises the error of the socket, a ConnectionResetError or EOFError, unless it finds that the process has ended.
    """
    explanation = _named(batches, error)
    clear_loader_frames(batches, explanation)
    return explanation


def is_of_a_sample(stop: StopIteration) -> bool:
    """Whether a data set or a collate function raised it, so that it is no end of the batches but an error."""
    return any(frame.f_code in LOADING for frame, _ in traceback.walk_tb(stop.__traceback__))


def _named(batches: Any, error: BaseException) -> BaseException:
    if sys.version_info >= (3, 11) and type(error) is RuntimeError and "unable to allocate shared memory" in str(error):
        error.add_note(FULL)
    dead = _dead(batches) if _is_of_receiving(error) else []
    if not dead:
        return error
    ends = ", ".join(f"pid {worker.pid}: {_end(worker)}" for worker in dead)
    death = RuntimeError(f"DataLoader worker ({ends}) exited unexpectedly")
    death.__cause__ = error
    return death


def clear_loader_frames(batches: Any, error: BaseException) -> None:
    """Clear the frames of an error's traceback that run the loader, so that an error that is kept keeps no worker.

    PyTorch's frame that raises a worker's error is cleared too: it holds that error, and the cycle would keep the
    batches of all frames. The data set's and the transform's own frames keep their variables for a debugger. If the
    device's memory has run out they are cleared too: they would keep the memory that the next attempt needs.
    """
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:  # a cause may be its own
        chain.append(following)
        following = following.__context__ if following.__cause__ is None else following.__cause__
    is_of_memory = any(isinstance(link, torch.OutOfMemoryError) for link in chain)
    for frame, _ in (entry for link in chain for entry in traceback.walk_tb(link.__traceback__)):
        method = getattr(type(batches), frame.f_code.co_name, None)
        if is_of_memory or frame.f_code in (getattr(method, "__code__", None), RERAISE):
            with contextlib.suppress(RuntimeError):  # it is still running, in a thread of the loader's
                frame.clear()


def _is_of_receiving(error: BaseException) -> bool:
    return any(frame.f_globals.get("__name__") in RECEIVING for frame, _ in traceback.walk_tb(error.__traceback__))


def _dead(batches: Any) -> list[BaseProcess]:
    """The workers that have ended before their time, or do so within a moment."""
    workers: list[BaseProcess] = getattr(batches, "_workers", [])
    # A worker with nothing more to load exits with code 0, and DataLoader expects no more of it.
    expected: list[bool] = getattr(batches, "_workers_status", [False] * len(workers))
    give_up = time.monotonic() + MOMENT
    while True:
        dead = [worker for worker, more in zip(workers, expected, strict=True) if _has_failed(worker, more)]
        if dead or not workers or time.monotonic() > give_up:
            return dead
        time.sleep(0.01)


def _has_failed(worker: BaseProcess, is_expected: bool) -> bool:
    return worker.exitcode is not None and (worker.exitcode != 0 or is_expected)


def _end(worker: BaseProcess) -> str:
    code = worker.exitcode or 0
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
