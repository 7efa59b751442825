"""When the background thread rests, and that nobody waits for it."""

import pytest

from fastload.pace import LONGEST, RECENT, Pace


def rests(idle, in_reserve=1, times=20):
    """How long the thread rests before each of so many batches, of which it always has ``idle`` seconds to spare."""
    pace, seconds = Pace(), []
    for _ in range(times):
        seconds.append(pace.rest_after(max(idle - sum(seconds[-1:]), 0.0), in_reserve))
    return seconds


def test_work_moves_to_the_middle_of_the_time_there_is():
    assert rests(0.02)[-1] == pytest.approx(0.01)


def test_a_thread_that_is_late_does_not_rest():
    assert rests(0.0) == [0.0] * 20


def test_nothing_rests_while_the_consumer_has_no_other_batch():
    assert rests(0.02, in_reserve=0) == [0.0] * 20


def test_a_single_pause_of_the_consumer_changes_nothing():
    pace = Pace()
    assert [pace.rest_after(idle, 1) for idle in (0.0, 0.0, 60.0, 0.0, 0.0)] == [0.0] * 5


def test_rests_are_short_however_slow_the_consumer_is():
    assert rests(60.0)[-1] == LONGEST


def test_a_thread_that_falls_behind_soon_stops_resting():
    pace = Pace()
    for _ in range(RECENT):
        pace.rest_after(0.04, 1)
    later = [pace.rest_after(0.0, 1) for _ in range(10)]
    assert later[0] <= 0.02
    assert later[-1] < 1e-4
