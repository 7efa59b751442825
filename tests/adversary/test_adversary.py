"""fastload under an adversary: 10,000 interleavings, and planted faults that it must find."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import fastload as fl
from fastload import prefetch, preparation, streams
from tests.adversary.program import Finding, Program, play
from tests.adversary.soak import drawn
from tests.batches import ClassicPrefetcher

INTERLEAVINGS = 10_000


@settings(max_examples=INTERLEAVINGS, deadline=None, suppress_health_check=list(HealthCheck))
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
        return dataclasses.replace(program, structure="pair", transform=None, passes=(plan,))

    assert is_found("holds", within=200, wrap=classic, adapt=one_pass)


class Faults:
    """Each breaks one rule of fastload's own code."""

    @staticmethod
    def consumer_does_not_wait(monkeypatch):
        def hand_over(side, memory, ready, consumer):  # noqa: ARG001
            for block in memory:
                block.record_stream(consumer)

        monkeypatch.setattr(streams.SideStream, "hand_over", hand_over)

    @staticmethod
    def allocator_is_not_told(monkeypatch):
        def hand_over(side, memory, ready, consumer):  # noqa: ARG001
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
        prepare = preparation.Preparation.__call__

        def early(self, batch):
            ready = self.side.prepared()
            arrival = prepare(self, batch)
            arrival.ready = ready
            return arrival

        monkeypatch.setattr(preparation.Preparation, "__call__", early)

    @staticmethod
    def side_stream_does_not_follow(monkeypatch):
        monkeypatch.setattr(streams.SideStream, "follow_consumer", lambda _: None)

    @staticmethod
    def thread_stays_on_the_default_stream(monkeypatch):
        monkeypatch.setattr(streams.SideStream, "adopt_thread", lambda _: None)

    @staticmethod
    def loader_is_asked_before_the_copy_is_done(monkeypatch):
        prepare = preparation.Preparation.__call__

        def unawaited(self, batch):
            arrival = prepare(self, batch)
            arrival.ready.wait = lambda: None
            return arrival

        monkeypatch.setattr(preparation.Preparation, "__call__", unawaited)

    @staticmethod
    def place_is_free_at_once(monkeypatch):
        monkeypatch.setattr(streams.SideStream, "consumed", lambda *_: streams.Passed())

    @staticmethod
    def place_is_free_by_the_stream_of_the_next_batch(monkeypatch):
        consumed = streams.SideStream.consumed
        monkeypatch.setattr(streams.SideStream, "consumed", lambda side, _: consumed(side, side.consumer()))

    @staticmethod
    def one_place_too_many(monkeypatch):
        reopen = prefetch.Room.reopen

        def wider(room):
            room.capacity = room.capacity + 1
            reopen(room)

        monkeypatch.setattr(prefetch.Room, "reopen", wider)

    @staticmethod
    def places_are_forgotten_between_passes(monkeypatch):
        reopen = prefetch.Room.reopen

        def forgetful(room):
            room.in_hand.clear()
            reopen(room)

        monkeypatch.setattr(prefetch.Room, "reopen", forgetful)

    @staticmethod
    def close_wakes_nobody(monkeypatch):
        monkeypatch.setattr(prefetch.Room, "close", lambda room: setattr(room, "closed", True))

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


@pytest.mark.parametrize("fault", FOUND_BY)
def test_the_adversary_finds(fault, monkeypatch):
    getattr(Faults, fault)(monkeypatch)
    assert is_found(FOUND_BY[fault], within=1000)


@pytest.mark.parametrize("seed", range(20))
def test_a_run_can_be_repeated(seed):
    program, schedule = drawn(seed)
    turns = {play(program, schedule).turns for _ in range(3)}
    assert len(turns) == 1
