"""``garbage_kept_from_workers``: forked workers do not collect the garbage that they inherit."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["garbage_kept_from_workers"]


@contextmanager
def garbage_kept_from_workers() -> Iterator[None]:
    """Keep workers that are forked within this context from collecting garbage that they inherit.

    That garbage may hold device tensors. A worker that frees one of them, recorded on a stream, is aborted: CUDA cannot
    be used after a fork. Each worker freezes what it inherits; this process's objects are left as they are.
    """
    _contexts.append(None)
    try:
        yield
    finally:
        _contexts.pop()


_contexts: list[None] = []  # that are open
_enabled: list[bool] = []  # whether the collector was, before each fork that is under way


def _before_fork() -> None:
    _enabled.append(gc.isenabled())
    gc.disable()  # else the worker might collect before it has frozen anything


def _in_parent() -> None:
    if _enabled.pop():
        gc.enable()


def _in_child() -> None:
    if _contexts:
        gc.freeze()
        _contexts.clear()
    if any(_enabled):  # several threads may fork at once
        gc.enable()
    _enabled.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
