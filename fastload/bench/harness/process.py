"""``in_new_process``: a call made in a process of its own, in which nothing has happened before."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["in_new_process", "start_workers_by"]

P = ParamSpec("P")
T = TypeVar("T")


def in_new_process(call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Return what a call returns, or raise what it raises; these are pickled, as are ``call`` and its arguments.

    >>> in_new_process(os.getpid) == os.getpid()  # doctest: +SKIP
    False

    The process ends with this one, and loaders start their workers there as they would here.
    """
    here, spawning = multiprocessing.get_start_method(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawning, _begin, (here,)) as process:
        return process.submit(call, *arguments, **keywords).result()


def start_workers_by(method: str) -> None:
    """Let loaders of this process start their workers so: a spawned process would spawn them, each for seconds."""
    multiprocessing.set_start_method(method, force=True)


def _begin(start_method: str) -> None:
    start_workers_by(start_method)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C interrupts this process's parent, which says so
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
