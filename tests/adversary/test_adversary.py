"""fastload under an adversary: 10,000 interleavings, and planted faults that it must find.

``make test`` plays 500 of them, others at each commit; ``make soak`` plays all, and then more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import fastload as fl
from fastload import streams
from fastload.prefetch import preparer, slots, static
from fastload.transfer import pinned, transfer
from tests.adversary.program import Finding, Habit, PassPlan, Program, add_in_place, play
from tests.adversary.soak import drawn
from tests.batches import ClassicPrefetcher
from tests.counts import count

# A core each process; two might choose the same.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("adversary")]

INTERLEAVINGS = count(full=10_000, here=500)


@settings(max_examples=INTERLEAVINGS, suppress_health_check=list(HealthCheck))
@given(st.binary(min_size=96, max_size=96), st.binary(min_size=512, max_size=512))
def test_g01_g02_g04_g05_g06_g12_hold_in_every_interleaving(program, schedule):
    drawn_program = Program.drawn(program)
    note(str(drawn_program))
    play(drawn_program, schedule)


def is_found(
    what: str, within: int, wrap: Any = fl.PrefetchLoader, adapt: Callable[[Program], Program] = lambda it: it
):
    """Whether there is such a finding among so many interleavings."""
    for seed in range(within):
        program, schedule = drawn(seed)
        try:
            play(adapt(program), schedule, wrap)
        except Finding as finding:
            if what in str(finding):
                return True
    return False


def test_g01_the_adversary_finds_the_classic_prefetcher_wrong():
    def classic(loader, transform, depth):  # noqa: ARG001
        return ClassicPrefetcher(loader, device="meta")

    def one_pass(program: Program) -> Program:
        plan = dataclasses.replace(program.passes[0], leave="drop", fault="")
        return dataclasses.replace(program, structure="pair", static=None, transform=None, passes=(plan,))

    assert is_found("holds", within=200, wrap=classic, adapt=one_pass)


class Faults:
    """Each breaks one rule of fastload's own code."""

    @staticmethod
    def consumer_does_not_wait(monkeypatch):
        def hand_over(side, memory, ready, consumer=None):  # noqa: ARG001
            for block in memory:
                block.record_stream(consumer)

        monkeypatch.setattr(streams.SideStream, "hand_over", hand_over)

    @staticmethod
    def allocator_is_not_told(monkeypatch):
        def hand_over(side, memory, ready, consumer=None):  # noqa: ARG001
            consumer.wait_event(ready.event)

        monkeypatch.setattr(streams.SideStream, "hand_over", hand_over)

    @staticmethod
    def allocator_is_told_of_one_block_only(monkeypatch):
        hand_over = streams.SideStream.hand_over
        monkeypatch.setattr(
            streams.SideStream, "hand_over", lambda side, memory, *rest: hand_over(side, memory[:1], *rest)
        )

    @staticmethod
    def event_is_recorded_before_the_work(monkeypatch):
        prepare = preparer.Preparer.__call__

        def early(self, item):
            ready = self.side.prepared()
            is_left = prepare(self, item)
            item.ready = ready
            return is_left

        monkeypatch.setattr(preparer.Preparer, "__call__", early)

    @staticmethod
    def event_is_recorded_again_at_once(monkeypatch):
        record = streams.RecordedEvent.__init__

        def shared(self, stream, *, is_timed):
            record(self, stream, is_timed=is_timed)
            self._spare.append(self.event)

        monkeypatch.setattr(streams.RecordedEvent, "__init__", shared)

    @staticmethod
    def side_stream_does_not_follow(monkeypatch):
        monkeypatch.setattr(streams.SideStream, "follow_consumer", lambda _: None)

    @staticmethod
    def thread_stays_on_the_default_stream(monkeypatch):
        monkeypatch.setattr(streams.SideStream, "adopt_thread", lambda _: None)

    @staticmethod
    def loader_is_asked_before_the_copy_is_done(monkeypatch):
        prepare = preparer.Preparer.__call__

        def unawaited(self, item):
            is_left = prepare(self, item)
            if is_left:
                item.ready.wait = lambda: None
            return is_left

        monkeypatch.setattr(preparer.Preparer, "__call__", unawaited)

    @staticmethod
    def place_is_free_at_once(monkeypatch):
        monkeypatch.setattr(streams.SideStream, "consumed", lambda *_: streams.DoneFence())

    @staticmethod
    def place_is_free_by_the_stream_of_the_next_batch(monkeypatch):
        consumed = streams.SideStream.consumed
        monkeypatch.setattr(streams.SideStream, "consumed", lambda side, _: consumed(side, side.consumer()))

    @staticmethod
    def one_place_too_many(monkeypatch):
        build = slots.SlotPool.__init__
        monkeypatch.setattr(slots.SlotPool, "__init__", lambda pool, depth, static=None: build(pool, depth + 1, static))

    @staticmethod
    def places_are_forgotten_between_passes(monkeypatch):
        reopen = slots.SlotPool.reopen

        def forgetful(pool):
            pool._in_hand.clear()
            reopen(pool)

        monkeypatch.setattr(slots.SlotPool, "reopen", forgetful)

    @staticmethod
    def pinned_block_is_lent_again_at_once(monkeypatch):
        release = pinned.StagingPool.release
        monkeypatch.setattr(
            pinned.StagingPool, "release", lambda pool, block, _: release(pool, block, streams.DoneFence())
        )

    @staticmethod
    def pinned_block_is_taken_back_with_a_point_before_the_copy(monkeypatch):
        copy_staged = transfer._copy_staged

        def early(pool, staged, side):
            before = side.prepared()
            copy_staged(pool, staged, SimpleNamespace(prepared=lambda: before))

        monkeypatch.setattr(transfer, "_copy_staged", early)

    @staticmethod
    def slot_is_poisoned_on_the_stream_of_the_next_batch(monkeypatch):
        monkeypatch.setattr(streams.SideStream, "on", lambda *_: nullcontext())

    @staticmethod
    def slot_is_poisoned_on_the_side_stream(monkeypatch):
        monkeypatch.setattr(streams.SideStream, "on", lambda side, _: side._backend.stream(side._stream))

    @staticmethod
    def slot_is_poisoned_after_its_place_is_given_back(monkeypatch):
        poison = static.FixedBuffer.poison
        consumed = streams.SideStream.consumed
        held: list[static.FixedBuffer] = []

        def hold(slot):
            held.append(slot)

        def later(side, consumer):
            point = consumed(side, consumer)
            while held:
                poison(held.pop())
            return point

        monkeypatch.setattr(static.FixedBuffer, "poison", hold)
        monkeypatch.setattr(streams.SideStream, "consumed", later)

    @staticmethod
    def batches_share_a_slot(monkeypatch):
        build = slots.SlotPool.__init__

        def shared(pool, depth, static=None):
            build(pool, depth, static)
            for slot in pool._slots[1:]:
                slot.buffer = pool._slots[0].buffer

        monkeypatch.setattr(slots.SlotPool, "__init__", shared)

    @staticmethod
    def close_wakes_nobody(monkeypatch):
        monkeypatch.setattr(slots.SlotPool, "close", lambda pool: setattr(pool, "closed", True))

    @staticmethod
    def consumer_waits_for_the_device(monkeypatch):
        hand_over = streams.SideStream.hand_over

        def patient(side, memory, ready, consumer):
            hand_over(side, memory, ready, consumer)
            ready.wait()

        monkeypatch.setattr(streams.SideStream, "hand_over", patient)


FOUND_BY = {
    "consumer_does_not_wait": "holds",
    "allocator_is_not_told": "holds",
    "allocator_is_told_of_one_block_only": "holds",
    "event_is_recorded_before_the_work": "holds",
    "event_is_recorded_again_at_once": "holds",
    "side_stream_does_not_follow": "holds",
    "thread_stays_on_the_default_stream": "holds",
    "loader_is_asked_before_the_copy_is_done": "holds",
    "place_is_free_at_once": "blocks are taken",
    "place_is_free_by_the_stream_of_the_next_batch": "blocks are taken",
    "one_place_too_many": "blocks are taken",
    "places_are_forgotten_between_passes": "blocks are taken",
    "close_wakes_nobody": "no stream can go on",
    "consumer_waits_for_the_device": "thread waits for the device",
}


def on_two_streams(program: Program) -> Program:
    """The same with the consumer on another stream for two batches of four, in twice as many passes."""
    passes = [
        dataclasses.replace(
            plan,
            habits=tuple(
                dataclasses.replace(habit, on_second=number % 4 < 2) for number, habit in enumerate(plan.habits)
            ),
        )
        for plan in program.passes * 2
    ]
    return dataclasses.replace(program, passes=tuple(passes))


def on_two_streams_anywhere(program: Program) -> Program:
    return dataclasses.replace(on_two_streams(program), static=None)


def from_the_device(program: Program) -> Program:
    """The same with a data set on the device."""
    transform = None if program.transform is add_in_place else program.transform
    return dataclasses.replace(program, source="device", transform=transform)


ADAPTED = {  # to what the rule is about, where few programs are
    "side_stream_does_not_follow": from_the_device,
    "place_is_free_by_the_stream_of_the_next_batch": on_two_streams_anywhere,
    "places_are_forgotten_between_passes": on_two_streams_anywhere,
}


@pytest.mark.parametrize("fault", FOUND_BY)
def test_the_adversary_finds(fault, monkeypatch):
    getattr(Faults, fault)(monkeypatch)
    assert is_found(FOUND_BY[fault], within=1000, adapt=ADAPTED.get(fault, lambda program: program))


# The background thread waits for each batch before it asks for the next, so that a loader may use its buffers again:
# what goes through the ring has been read by then. Its own rule is tried without that wait.
RING = ["pinned_block_is_lent_again_at_once", "pinned_block_is_taken_back_with_a_point_before_the_copy"]


def through_the_ring(program: Program) -> Program:
    return dataclasses.replace(program, structure="pair", source="pageable", static=None)


def test_where_nothing_else_waits_the_ring_alone_is_enough(monkeypatch):
    Faults.loader_is_asked_before_the_copy_is_done(monkeypatch)
    assert not is_found("holds", within=count(full=1000, here=250), adapt=through_the_ring)


@pytest.mark.parametrize("fault", RING)
def test_the_adversary_finds_where_nothing_else_waits(fault, monkeypatch):
    Faults.loader_is_asked_before_the_copy_is_done(monkeypatch)
    getattr(Faults, fault)(monkeypatch)
    assert is_found("holds", within=1000, adapt=through_the_ring)


SLOTS = [
    "place_is_free_at_once",
    "place_is_free_by_the_stream_of_the_next_batch",
    "batches_share_a_slot",
    "slot_is_poisoned_on_the_stream_of_the_next_batch",
    "slot_is_poisoned_on_the_side_stream",
    "slot_is_poisoned_after_its_place_is_given_back",
]


def at_fixed_addresses(program: Program) -> Program:
    rows = "even" if program.rows == "uneven" else program.rows
    return dataclasses.replace(on_two_streams(program), structure="pair", rows=rows, static=fl.Static(poison=True))


@pytest.mark.parametrize("fault", SLOTS)
def test_the_adversary_finds_at_fixed_addresses(fault, monkeypatch):
    getattr(Faults, fault)(monkeypatch)
    assert is_found("holds", within=1000, adapt=at_fixed_addresses)


def test_the_adversary_finds_slots_that_are_forgotten_between_passes(monkeypatch):
    def in_two_passes(program: Program) -> Program:
        """The last batch of one pass lies where the first of the next comes; a stream that nobody awaits has it."""
        plan = PassPlan((Habit(on_second=True),) * 5, leave="end", fault="", fails_at=0)
        return dataclasses.replace(at_fixed_addresses(program), depth=1, batches=4, passes=(plan, plan))

    Faults.places_are_forgotten_between_passes(monkeypatch)
    assert is_found("holds", within=1000, adapt=in_two_passes)


@pytest.mark.parametrize("seed", range(20))
def test_a_run_can_be_repeated(seed):
    program, schedule = drawn(seed)
    turns = {play(program, schedule).turns for _ in range(3)}
    assert len(turns) == 1
