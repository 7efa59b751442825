"""The stall clock: what it counts as waiting, and what it leaves out."""

import time

import pytest
import torch

from fastload.stats import StallClock

CPU = torch.device("cpu")
SECONDS = 0.02


def share_of(waits, work):
    """Train on as many batches as there are ``waits``, each arriving after so many seconds, with ``work`` on each."""
    clock = StallClock(CPU)
    for wait in waits:
        with clock.waiting():
            time.sleep(wait)
        time.sleep(work)
    with clock.waiting():
        pass
    return clock.share()


def test_share_is_high_where_every_batch_is_late():
    assert 0.5 < share_of(waits=[SECONDS] * 5, work=0) <= 1


def test_share_is_low_where_every_batch_is_there():
    assert 0 <= share_of(waits=[0] * 5, work=SECONDS) < 0.5


def test_the_wait_for_the_first_batch_is_left_out():
    assert share_of(waits=[20 * SECONDS, 0, 0], work=SECONDS) < 0.5


def test_nothing_measured_is_no_share_and_no_seconds():
    clock = StallClock(CPU)
    assert clock.share() == clock.seconds() == 0


def test_an_error_while_waiting_reaches_the_caller():
    with pytest.raises(RuntimeError, match="no batch"), StallClock(CPU).waiting():
        raise RuntimeError("no batch")
