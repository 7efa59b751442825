"""Where the training thread is found."""

import inspect
import threading

from fastload.stats.lines import EVERY, FIRST, LineSampler


def test_each_of_the_first_steps_is_looked_at_and_one_in_eight_of_the_others():
    sampler = LineSampler()
    due = [sampler.is_due() for _ in range(FIRST + 10 * EVERY)]
    assert all(due[:FIRST])
    assert sum(due[FIRST:]) == 10


def test_a_look_finds_the_users_line():
    sampler = LineSampler()
    sampler.thread = threading.get_ident()
    sampler.look()
    (line,) = sampler.shares()
    assert line == f"{__file__}:{inspect.currentframe().f_lineno - 2}"
    assert sampler.shares() == {line: 1.0}
