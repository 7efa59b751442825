"""Turns bound how many there are at a time, without ever holding anybody up for good."""

import threading
import time

from fastload.turns import Turns

LONG = 60.0  # seconds that no test waits


def test_a_turn_that_is_given_back_is_taken_at_once():
    turns = Turns(1, patience=LONG)
    for _ in range(3):
        turns.take()
        turns.give_back()


def test_who_finds_none_waits_for_the_next():
    turns = Turns(1, patience=LONG)
    turns.take()
    waiting = threading.Thread(target=turns.take)
    waiting.start()
    waiting.join(timeout=0.05)
    assert waiting.is_alive()
    turns.give_back()
    waiting.join(timeout=LONG)
    assert not waiting.is_alive()


def test_there_are_twice_as_many_for_who_waits_in_vain():
    """A thousand that are never given back cost nine waits, and not 998."""
    patience = 0.05
    turns = Turns(2, patience=patience)
    waited = 0
    for _ in range(1000):
        before = time.monotonic()
        turns.take()
        waited += time.monotonic() - before >= patience
    assert 9 <= waited < 100  # a busy machine may add some
