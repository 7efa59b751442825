"""What became of the processes that load for a ``DataLoader``, where its own error does not say."""

from __future__ import annotations

import sys
import time
import traceback
from multiprocessing.process import BaseProcess
from typing import Any

__all__ = ["explained"]

# A worker that is killed closes its connections a moment before it has ended: how long to wait for that, in seconds.
MOMENT = 5.0

FETCHING = ("multiprocessing.resource_sharer", "fastload.data.shared_memory")  # where it is done

FULL = (
    "Tensors of workers lie in /dev/shm, which is full: give it more room (docker run --shm-size=8g), or let fewer or "
    "smaller batches wait there (num_workers, prefetch_factor, batch_size)"
)


def explained(batches: Any, error: BaseException) -> BaseException:
    """The error of a loader's iterator; or, where it comes of a worker's death, one that says so, caused by it.

    A tensor that a worker sent is fetched from it when it is unpickled. If the worker is killed meanwhile,
    ``DataLoader`` raises what the socket says, a ConnectionResetError or EOFError, unless it happens to find that the
    process has ended already.
    """
    if sys.version_info >= (3, 11) and type(error) is RuntimeError and "unable to allocate shared memory" in str(error):
        error.add_note(FULL)
    dead = _dead(getattr(batches, "_workers", [])) if _is_of_fetching(error) else []
    if not dead:
        return error
    ends = ", ".join(f"pid {worker.pid}: {_end(worker)}" for worker in dead)
    death = RuntimeError(f"DataLoader worker ({ends}) exited unexpectedly")
    death.__cause__ = error
    return death


def _is_of_fetching(error: BaseException) -> bool:
    return any(frame.f_globals.get("__name__") in FETCHING for frame, _ in traceback.walk_tb(error.__traceback__))


def _dead(workers: list[BaseProcess]) -> list[BaseProcess]:
    """Those that have failed, or do so in a moment; an exit code of 0 is of one that had nothing more to load."""
    give_up = time.monotonic() + MOMENT
    while not (dead := [worker for worker in workers if worker.exitcode]) and time.monotonic() < give_up:
        time.sleep(0.01)
    return dead


def _end(worker: BaseProcess) -> str:
    code = worker.exitcode or 0
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
