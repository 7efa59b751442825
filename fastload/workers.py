"""What became of the processes that load for a ``DataLoader``, where its own error does not say."""

from __future__ import annotations

import signal
import sys
import traceback
from multiprocessing import resource_sharer
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

__all__ = ["explained"]

# A worker that is killed closes its connections a moment before it has ended: how long to wait for that, in seconds.
MOMENT = 5.0

FULL = (
    "Workers hand tensors over in /dev/shm, which is full: give it more room (docker run --shm-size=…), or let fewer "
    "or smaller batches wait there (num_workers, prefetch_factor, batch_size). Files packed by fastload.collate do "
    "not lie there."
)


def explained(batches: Any, error: BaseException) -> BaseException:
    """The error of a loader's iterator, or one of which it is the cause: that a worker has died.

    Tensors that a worker sent are fetched from it when they are unpickled. If it is killed meanwhile, ``DataLoader``
    raises what the socket says, a ConnectionResetError or EOFError, unless it happens to find that the process has
    ended already.
    """
    if "unable to allocate shared memory" in str(error) and sys.version_info >= (3, 11):
        error.add_note(FULL)
    if not _is_of_fetching(error):
        return error
    workers: list[BaseProcess] = getattr(batches, "_workers", [])
    dead = _dead(workers) or _ending(workers)
    if not dead:
        return error
    ends = ", ".join(f"pid {worker.pid}: {_end(worker)}" for worker in dead)
    death = RuntimeError(f"DataLoader worker ({ends}) exited unexpectedly")
    death.__cause__ = error
    return death


def _is_of_fetching(error: BaseException) -> bool:
    return any(frame.f_globals is vars(resource_sharer) for frame, _ in traceback.walk_tb(error.__traceback__))


def _dead(workers: list[BaseProcess]) -> list[BaseProcess]:
    return [worker for worker in workers if worker.exitcode]  # 0: had nothing more to do


def _ending(workers: list[BaseProcess]) -> list[BaseProcess]:
    """Those whose end has begun, or begins in a moment; once it is complete."""
    begun = wait([worker.sentinel for worker in workers if worker.is_alive()], MOMENT)
    for worker in workers:
        if worker.sentinel in begun:
            worker.join()
    return _dead(workers)


def _end(worker: BaseProcess) -> str:
    code = worker.exitcode or 0
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
