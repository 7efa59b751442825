"""``PrefetchIterator``: one pass over a loader, prepared ahead of its consumer by threads, in bounded memory."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

from fastload.interrupts import InterruptCores, interrupt_cores
from fastload.prefetch.channel import Channel, End
from fastload.prefetch.decode_ahead import DecodeStage
from fastload.prefetch.flag import Flag
from fastload.prefetch.item import Item
from fastload.prefetch.preparer import Preparer
from fastload.prefetch.slots import SlotPool
from fastload.prefetch.stage import Stage
from fastload.prefetch.worker_errors import clear_loader_frames, explained, is_of_a_sample
from fastload.resume.consumer_state import ConsumerState
from fastload.resume.position import Latest, Progress
from fastload.stats.clock import Asked, PassClock
from fastload.structure.tree import tree_flatten
from fastload.transfer.transfer import move_the_rest

__all__ = ["BatchSource", "PrefetchIterator"]

# How long to wait, in seconds, for a thread that is inside the wrapped loader, which nobody can interrupt. At the end
# of the interpreter the wait is longer: it would abort if the thread were inside PyTorch then.
GRACE = 0.8
GRACE_AT_EXIT = 60.0

Items = Channel[Item]


class BatchSource(Iterator[Item]):
    """Pulls batches from the loader, each flattened, with the position that the loader has after it."""

    def __init__(
        self, batches: Iterator[Any], progress: Progress, clock: PassClock, consumer: ConsumerState | None = None
    ) -> None:
        self.batches = batches
        self.progress = progress
        self.clock = clock
        self.consumer = consumer

    def __next__(self) -> Item:
        times = self.clock.pulling()
        try:
            with times.stage("load"):
                batch = next(self.batches)
        except StopIteration as stop:
            if is_of_a_sample(stop):
                raise RuntimeError("a data set or its collate function raised StopIteration") from stop
            self.progress.exhausted()
            raise
        times.overtaken = self.clock.workers.overtaken()
        tree = tree_flatten(batch)
        return Item(tree, self.progress.fetched(tree), times)

    def close(self) -> None:
        """Drop the loader's iterator, and with it the workers; the traceback of an error may keep this object."""
        self.clock.end()
        del self.batches
        self.progress.closed()


def marking_the_last(source: Iterator[Item]) -> Iterator[Item]:
    """Pull one batch ahead, as Accelerate's loaders do, to know the last one; an error still comes at its batch."""
    item = next(source, None)
    while item is not None:
        try:
            following = next(source, None)
        except BaseException:
            yield item
            raise
        item.is_last = following is None
        yield item
        item = following


def produce(
    source: BatchSource,
    decode: DecodeStage | None,
    slots: SlotPool,
    prepare: Preparer,
    items: Items,
    cores: InterruptCores,
    ended: Flag,
) -> None:
    """The way of a batch from the loader to the consumer, in threads of fastload's; runs in "fastload-prefetch".

    1. It is *pulled* from the loader and flattened.
    2. Its files are *pinned* and *decoded*, ahead of the rest and each by a thread of its own, if there is ``decode``.
    3. It *acquires* a slot: room on the device, which the device is done with.
    4. It is *prepared* on the side stream: copied, transformed, its targets follow.
    5. It waits in ``items`` until :meth:`PrefetchIterator.__next__` *hands it out*.

    Until the loader ends, an error, or the pass is closed. Without ``decode``, a batch is pulled when it has its slot.
    """
    stages: list[Stage] = []

    def are_few() -> bool:
        """Whether the device had room for the last batch when its slot was asked for, and none waits for training."""
        return slots.had_room and not len(items)

    try:
        prepare.side.adopt_thread()
        cores.look()
        pulled: Iterator[Item] = source if source.consumer is None else marking_the_last(source)
        if decode is not None:
            stages.append(Stage(pulled, decode.pin, decode.side, cores, "fastload-pin"))
            work = partial(decode.decode, are_few=are_few)
            stages.append(Stage(stages[-1], work, decode.side, cores, "fastload-decode", decode.pace))
            pulled = stages[-1]
        clock = source.clock
        clock.keep_time()
        while (slot := slots.acquire(clock.lines)) and (item := next(pulled, None)):
            cores.look()
            cores.leave()
            item.slot, item.times.host["slot"] = slot, slot.waited
            _prepare(item, prepare, slots, items)
            clock.keep_time()
        if not slots.closed:
            items.end()
    except BaseException as error:  # noqa: BLE001  (raised in the consumer's thread, at its batch)
        items.end(explained(source.batches, error))
    finally:
        slots.close()
        prepare.close()
        for stage in reversed(stages):
            if (untaken := stage.close()) is not None:
                clear_loader_frames(source.batches, untaken)
        if decode is not None:
            decode.close()
        source.close()
        ended.set()


def _prepare(item: Item, prepare: Preparer, slots: SlotPool, items: Items) -> None:
    assert item.slot is not None
    with item.times.stage("prepare"):
        is_left = item.through(prepare)
    if not is_left:
        slots.put_back(item.slot)
        return
    items.put(item)
    item.ready.wait()  # asked for the next batch, the loader may write to its tensors again
    item.tree = None


class PrefetchIterator(Iterator[Any]):
    """One pass over the loader: the consumer's end of what :func:`produce` prepares."""

    def __init__(
        self,
        source: BatchSource,
        decode: DecodeStage | None,
        slots: SlotPool,
        prepare: Preparer,
        spare: list[SlotPool],
        latest: Latest,
    ) -> None:
        self._side = prepare.side
        self._progress = source.progress
        self._latest = latest
        self._clock = source.clock
        self._consumer_state = source.consumer
        self._slots = slots
        self._items: Items = Channel()
        self._cores = interrupt_cores()
        self._turn = threading.Lock()
        self._is_torn = False
        self._end = End()
        self._process = os.getpid()
        self.ended = Flag()
        work = source, decode, slots, prepare, self._items, self._cores, self.ended
        self.thread = threading.Thread(target=produce, args=work, name="fastload-prefetch", daemon=True)
        try:
            self.thread.start()
            _running[self.thread] = self._process, slots, self.ended
            # The thread does not know of this iterator. So dropping the iterator ends the pass, as does the end of the
            # interpreter.
            self.close = weakref.finalize(
                self, _close, self._process, self.thread, self.ended, self._items, slots, spare
            )
        except BaseException:  # an interrupt, while the thread may run already
            slots.close()
            raise

    def __next__(self) -> Any:
        if self._process != os.getpid():
            raise RuntimeError(
                f"this pass runs in process {self._process}, from which this one was forked: iterate over the loader "
                "anew"
            )
        with self._turn:
            if self._is_torn:
                raise RuntimeError(
                    "an interrupt ended this pass while it handed over a batch, which is lost: iterate over the loader "
                    "anew"
                )
            if not self.close.alive:
                self._end.raised()
            consumer = self._side.consumer()
            asked = self._clock.asked(consumer, len(self._items))
            self._release_slot()
            entry = self._items.first()  # if a signal handler raises meanwhile, the next call goes on here
            if isinstance(entry, End):
                self._progress.ended = entry.is_complete
                if entry.is_complete and self._consumer_state is not None:
                    self._consumer_state.ended()
                self._end = entry  # if a signal handler raises meanwhile, the next call raises its error
                self.close()
                entry.raised()
            return self._handed_out(asked, consumer)

    def _release_slot(self) -> None:
        self._is_torn = True  # until it is done
        try:
            self._slots.release(self._side)
        except BaseException:
            self.close()
            raise
        self._is_torn = False

    def _handed_out(self, asked: Asked | None, consumer: Any) -> Any:
        self._cores.leave()
        self._is_torn = True  # until it is done
        try:
            batch = self._received(self._items.take(), asked, consumer)
        except StopIteration as error:  # it would end the loop as if nothing had happened
            self.close()
            raise RuntimeError("a `to` in the batch raised StopIteration") from error
        except BaseException:
            self.close()
            raise
        self._is_torn = False
        return batch

    def _received(self, item: Item, asked: Asked | None, consumer: Any) -> Any:
        assert item.slot is not None
        try:
            self._slots.hand_out(item.slot, consumer)
            if item.remark:
                warnings.warn(item.remark, UserWarning, stacklevel=4)
            self._side.hand_over(item.memory, item.ready, consumer)
            batch = self._with_the_rest(item.batch) if item.has_unmoved else item.batch
            self._progress.yielded = item.position
            self._latest.progress = self._progress
            if self._consumer_state is not None:
                self._consumer_state.holds(item.position.loader, is_last=item.is_last)
            self._clock.given(item.times, asked, consumer)
        finally:
            item.batch, item.memory = None, []  # the thread refers to the item until it has another
        return batch

    def _with_the_rest(self, batch: Any) -> Any:
        try:
            return move_the_rest(batch, self._side.device)
        except BaseException:
            self._is_torn = False  # an error of the user's object ends the pass as any other error does
            raise


def _close(
    process: int,
    thread: threading.Thread,
    ended: Flag,
    items: Items,
    slots: SlotPool,
    spare: list[SlotPool],
) -> None:
    if process != os.getpid():  # a fork has copies of all this, and no thread
        return
    slots.close()
    if thread is not threading.current_thread():  # where the garbage collector may have found the iterator
        _wait_for(thread, ended, time.monotonic() + GRACE)
    items.close()  # wakes a consumer that waits in another thread
    if not thread.is_alive():
        slots.reopen()
        spare.append(slots)


def _wait_for(thread: threading.Thread, ended: Flag, until: float) -> None:
    """Join a thread. After a `join` that is interrupted, Python up to 3.12 would take it for ended."""
    if ended.wait(max(0.0, until - time.monotonic())):
        thread.join(max(0.0, until - time.monotonic()))  # with the last of its work, workers are let go of


# The threads that have not ended yet, each with its process and what closes its pass.
_running: weakref.WeakKeyDictionary[threading.Thread, tuple[int, SlotPool, Flag]] = weakref.WeakKeyDictionary()


@atexit.register
def _wait_for_threads() -> None:
    here = [(thread, slots, ended) for thread, (process, slots, ended) in _running.items() if process == os.getpid()]
    for _, slots, _ in here:
        slots.close()
    give_up = time.monotonic() + GRACE_AT_EXIT
    for thread, _, ended in here:
        _wait_for(thread, ended, give_up)
