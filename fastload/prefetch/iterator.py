"""One pass over a loader, prepared ahead of its consumer by a background thread, in bounded memory."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import torch

from fastload.prefetch.channel import Channel
from fastload.prefetch.fetcher import Fetched, Fetcher
from fastload.prefetch.preparer import Arrival, Preparer
from fastload.prefetch.slots import Place, SlotPool
from fastload.prefetch.worker_errors import explained
from fastload.resume.position import Position
from fastload.transfer.transfer import move_own

__all__ = ["PrefetchIterator"]

# How long to wait, in seconds, for a thread that is inside the wrapped loader, which nobody can interrupt. At its end
# the interpreter waits longer: it would abort if the thread were inside PyTorch then.
GRACE = 0.8
GRACE_AT_EXIT = 60.0


class _End(Enum):
    """After which nothing comes: the loader has no more, or the pass was closed."""

    EXHAUSTED = auto()
    CLOSED = auto()


@dataclass
class _Failure:
    """An error of the background thread, after which nothing comes."""

    error: BaseException


Arrivals = Channel[tuple[Arrival, Position, Place] | _Failure | _End]


class PrefetchIterator(Iterator[Any]):
    """One pass over the loader: the consumer's end of what a background thread prepares."""

    def __init__(self, fetcher: Fetcher, prepare: Preparer, spare: list[SlotPool]) -> None:
        self._side = prepare.side
        self._progress = fetcher.progress
        self._room = room = fetcher.room
        self._arrivals: Arrivals = Channel()
        self.ended = threading.Event()
        work = fetcher, prepare, self._arrivals, self.ended
        self.thread = threading.Thread(target=_feed, args=work, name="fastload-prefetch", daemon=True)
        self._turn = threading.Lock()
        self._is_broken = False
        try:
            self.thread.start()
            _running[self.thread] = room, self.ended
            # The thread does not know of the pass: letting go of the pass ends it, and so does the interpreter's end.
            self.close = weakref.finalize(self, _close, self.thread, self.ended, self._arrivals, room, spare)
        except BaseException:  # an interrupt, while the thread may run already
            room.close()
            raise

    def __next__(self) -> Any:
        with self._turn:
            if self._is_broken:
                raise RuntimeError(
                    "an interrupt or an error ended this pass while it handed over a batch, which is lost: iterate "
                    "over the loader anew"
                )
            if not self.close.alive:
                raise StopIteration
            try:
                self._room.leave(self._side)
            except BaseException:
                self.close()
                raise
            came = self._arrivals.first()  # if a signal handler raises meanwhile, the next call goes on here
            if isinstance(came, _End):
                self._progress.ended = came is _End.EXHAUSTED
                self.close()
                raise StopIteration
            try:
                return self._received(came)
            except StopIteration as error:  # it would end the loop as if nothing had happened
                self.close()
                raise RuntimeError("the loader, a transform or a `to` raised StopIteration") from error
            except BaseException:
                self.close()
                raise
            finally:
                del came  # an error's traceback keeps this frame, which would keep the batch

    def _received(self, came: tuple[Arrival, Position, Place] | _Failure) -> Any:
        if isinstance(came, _Failure):
            try:
                raise came.error
            finally:
                del came  # or the error would keep itself
        self._is_broken = True
        arrival, position, place = came
        self._arrivals.take()
        consumer = self._side.consumer()
        self._room.receive(place, consumer)
        if arrival.remark:
            warnings.warn(arrival.remark, UserWarning, stacklevel=3)
        sent = arrival.sent
        self._side.hand_over(sent.memory, arrival.ready, consumer)
        batch = move_own(sent.batch, self._side.device) if sent.has_own else sent.batch
        self._progress.yielded = position
        self._is_broken = False
        return batch


def _feed(fetcher: Fetcher, prepare: Preparer, arrivals: Arrivals, ended: threading.Event) -> None:
    """The background thread: prepare what is fetched; until the end, an error, or the pass is closed."""
    end: _Failure | _End = _End.CLOSED
    try:
        prepare.side.adopt_thread()
        for came in fetcher:
            try:
                _prepare(came, prepare, fetcher.room, arrivals)
            finally:
                del came  # pinned memory, not to be held while the loader takes its time, nor by an error
        if not fetcher.room.closed:
            end = _End.EXHAUSTED
    except BaseException as error:  # noqa: BLE001  (whatever it is, it is the consumer's to see)
        end = _Failure(explained(fetcher.batches, error))
        _forget(fetcher.batches, end.error)
    finally:
        prepare.close()
        arrivals.put(end)
        del end
        fetcher.close()
        ended.set()


def _prepare(came: Fetched, prepare: Preparer, room: SlotPool, arrivals: Arrivals) -> None:
    with torch.no_grad():
        arrival = prepare(came.batch, came.place.slot, came.decoded)
    if arrival is None:  # of some batches nothing is left
        room.give_back(came.place)
        return
    arrivals.put((arrival, replace(came.position, samples=prepare.samples), came.place))
    arrival.ready.wait()  # asked for the next batch, the loader may write to its tensors again


def _forget(batches: Iterator[Any], error: BaseException) -> None:
    """Let an error that is kept not keep the loader's workers: empty the frames of its traceback that run the loader.

    The dataset's and the transform's own frames keep their variables for a debugger, unless the device's memory has run
    out: they would keep of it what the next try needs.
    """
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:  # a cause may be its own
        chain.append(following)
        following = following.__context__ if following.__cause__ is None else following.__cause__
    is_of_memory = any(isinstance(link, torch.OutOfMemoryError) for link in chain)
    for frame, _ in (entry for link in chain for entry in traceback.walk_tb(link.__traceback__)):
        method = getattr(type(batches), frame.f_code.co_name, None)
        if is_of_memory or getattr(method, "__code__", None) is frame.f_code:
            with contextlib.suppress(RuntimeError):  # it is still running, in a thread of the loader's
                frame.clear()


def _close(
    thread: threading.Thread, ended: threading.Event, arrivals: Arrivals, room: SlotPool, spare: list[SlotPool]
) -> None:
    room.close()
    if thread is not threading.current_thread():  # where the garbage collector may have found the pass
        _wait_for(thread, ended, time.monotonic() + GRACE)
    arrivals.clear()
    arrivals.put(_End.CLOSED)  # for a consumer that waits in another thread
    if not thread.is_alive():
        room.reopen()
        spare.append(room)


def _wait_for(thread: threading.Thread, ended: threading.Event, until: float) -> None:
    """Join a thread. After a `join` that is interrupted, Python up to 3.12 would take it for ended."""
    if ended.wait(max(0.0, until - time.monotonic())):
        thread.join(max(0.0, until - time.monotonic()))  # with the last of its work, workers are let go of


# The threads that have not ended yet, each with what closes its pass.
_running: weakref.WeakKeyDictionary[threading.Thread, tuple[SlotPool, threading.Event]] = weakref.WeakKeyDictionary()


@atexit.register
def _wait_for_threads() -> None:
    for room, _ in list(_running.values()):
        room.close()
    give_up = time.monotonic() + GRACE_AT_EXIT
    for thread, (_, ended) in list(_running.items()):
        _wait_for(thread, ended, give_up)
