"""The stall clock: what it counts as waiting, and what it leaves out."""

import pytest
import torch

from fastload import streams
from fastload.demo.stall_clock import StallClock

CPU = torch.device("cpu")


class Time:
    """It passes when it is told to."""

    now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def share_of(monkeypatch):
    monkeypatch.setattr(streams, "time", time := Time())

    def share(waits, work):
        """Train on as many batches as there are ``waits``, each after so many seconds, with ``work`` on each."""
        clock = StallClock(CPU)
        for wait in waits:
            with clock.waiting():
                time.sleep(wait)
            time.sleep(work)
        with clock.waiting():
            pass
        return clock.share()

    return share


def test_share_is_all_where_every_batch_is_late(share_of):
    assert share_of(waits=[2] * 5, work=0) == 1


def test_share_is_nothing_where_every_batch_is_there(share_of):
    assert share_of(waits=[0] * 5, work=2) == 0


def test_share_is_the_part_of_the_time_that_is_waited(share_of):
    assert share_of(waits=[0, 3, 1], work=4) == 4 / (4 + 3 * 4)


def test_the_wait_for_the_first_batch_is_left_out(share_of):
    assert share_of(waits=[20, 1, 0], work=1) == 1 / (1 + 3)


def test_nothing_measured_is_no_share_and_no_seconds():
    clock = StallClock(CPU)
    assert clock.share() == clock.seconds() == 0


def test_an_error_while_waiting_reaches_the_caller():
    with pytest.raises(RuntimeError, match="no batch"), StallClock(CPU).waiting():
        raise RuntimeError("no batch")
