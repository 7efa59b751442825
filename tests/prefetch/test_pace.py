"""A thread that is ahead of training rests until the step's second half, out of time that it has to spare."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastload.interrupts import interrupt_cores
from fastload.prefetch.decode_ahead import DecodeStage
from fastload.prefetch.item import Item
from fastload.prefetch.pace import KEPT, MOST, SEEN, Pace
from fastload.prefetch.stage import Stage
from fastload.stats.batch_times import BatchTimes, Span
from fastload.streams import side_stream
from fastload.transforms import DecodeJpeg

CPU = torch.device("cpu")
STEP = 0.04


class Decoder:
    """A thread on a clock of its own: a batch is taken where a step begins, unless it is made later."""

    def __init__(self, step=STEP):
        self.pace, self.step = Pace(), step
        self.taken = self.done = 0.0

    def batch(self, work, *, pinned_after=0.0):
        """Return the rest before a batch that takes ``work``, and whether training's next step had to wait for it."""
        rest = self.pace.rest(Span(self.done, self.taken), self.taken + pinned_after)
        self.done = self.taken + pinned_after + rest + work
        due = self.taken + self.step
        self.taken = max(due, self.done)
        return rest, self.done > due

    def batches(self, count, work, **options):
        return [self.batch(work, **options)[0] for _ in range(count)]


def test_it_begins_with_the_second_half_of_a_step_once_it_knows_the_step():
    rests = Decoder().batches(2 * SEEN, work=0.01)
    assert rests[:SEEN] == [0.0] * SEEN
    assert rests[SEEN + 1 :] == pytest.approx([STEP / 2] * (SEEN - 1))


def test_it_does_not_rest_longer_because_files_came_late():
    decoder = Decoder()
    decoder.batches(2 * SEEN, work=0.01)
    assert decoder.batches(3, work=0.01, pinned_after=0.005) == pytest.approx([STEP / 2 - 0.005] * 3)
    assert decoder.batches(3, work=0.01, pinned_after=0.025) == [0.0] * 3


@pytest.mark.parametrize(("work", "share"), [(0.475, 1 - 0.475 - KEPT), (0.6, 0.0), (0.99, 0.0), (1.25, 0.0)])
def test_it_rests_no_longer_than_it_has_time_to_spare(work, share):
    assert Decoder().batches(3 * SEEN, work * STEP)[-1] == pytest.approx(share * STEP)


def test_where_a_batch_was_late_it_takes_the_next_ones_at_once():
    decoder = Decoder()
    decoder.batches(2 * SEEN, work=0.01)
    rest, is_late = decoder.batch(work=0.03)
    assert (rest, is_late) == (pytest.approx(STEP / 2), True)
    after = decoder.batches(2 * SEEN, work=0.01)
    assert after[:SEEN] == [0.0] * SEEN
    assert after[SEEN + 1] == pytest.approx(STEP / 2)


@given(
    st.floats(0.001, 2.0),
    st.lists(st.tuples(st.floats(0.0, 1.5), st.floats(0.0, 1.5)), min_size=1, max_size=60),
)
def test_it_never_rests_for_more_than_half_a_step(step, batches):
    """Nor where it was late within the last batches, whatever they took and however late their files came."""
    decoder, late = Decoder(step), []
    for work, pinned_after in batches:
        rest, is_late = decoder.batch(work * step, pinned_after=pinned_after * step)
        slowest = max([step, *(decoder.step * (w + p + 1) for w, p in batches)])
        assert 0.0 <= rest <= MOST * slowest
        assert not (rest and any(late[-SEEN:]))
        late.append(is_late)


def test_a_steady_thread_that_rests_is_never_late():
    for share in torch.linspace(0.0, 0.99, 100).tolist():
        decoder = Decoder()
        assert not any(decoder.batch(share * STEP)[1] for _ in range(4 * SEEN))


def test_a_rest_does_not_keep_a_pass_from_its_end():
    class Endless(Pace):
        def rest(self, waited, now):  # noqa: ARG002  (the pace's arguments)
            resting.set()
            return 1e6

    resting, worked = threading.Event(), []
    items = iter([Item(None, None, BatchTimes(0, CPU))])
    stage = Stage(items, worked.append, side_stream(CPU), interrupt_cores(), "rests", Endless())
    assert resting.wait(60)
    stage.close()
    assert len(worked) == 1


def test_a_cpu_that_decodes_does_not_rest():
    assert DecodeStage(DecodeJpeg(), CPU).pace is None


@pytest.mark.gpu
def test_a_gpu_that_decodes_rests():
    assert isinstance(DecodeStage(DecodeJpeg(), torch.device("cuda")).pace, Pace)
