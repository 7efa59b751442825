"""G10 among real processes: killed at any time and resumed, and ranks resumed as more or fewer ranks."""

import random
import shutil
from collections import Counter

import pytest

from tests.lives import BATCH, EPOCHS, LOADERS, SAMPLES, begin, lines_written, live_as_ranks, was_killed

pytestmark = pytest.mark.long

KINDS = [(kind, workers) for kind in LOADERS for workers in (0, 2) if (kind, workers) != ("kept workers", 0)]
KILLS = 5  # of each of these eleven


def uninterrupted(kind, workers, home):
    home.mkdir()
    process = begin(kind, workers, home)
    process.join(60)
    assert process.exitcode == 0
    ((_, lines),) = lines_written(home)
    return lines


@pytest.mark.parametrize(("kind", "workers"), KINDS)
def test_g10_a_run_that_is_killed_again_and_again_is_the_uninterrupted_one(kind, workers, tmp_path):
    """A process logs a batch and then saves the state; the kill comes before, after, or between the two.

    So the next life must begin right after the batch that was saved last: the one that was logged last or, where the
    kill came between, the one before it, and then one batch comes a second time. What each life logs, the samples and
    a checksum of their augmented pixels, must be what the uninterrupted run logged from there on, and no line of that
    may be left out.
    """
    if kind == "stateful":
        pytest.importorskip("torchdata.stateful_dataloader")
    chance = random.Random(f"{kind} {workers}")
    expected = uninterrupted(kind, workers, tmp_path / "expected")
    kills, home = 0, tmp_path / "killed"
    while kills < KILLS:  # a run that came to its end too early is followed by another
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        killed = True
        while killed:
            lines = chance.randint(0, 6) if kills < KILLS else len(expected) + 1
            killed = was_killed(begin(kind, workers, home), home, after_lines=lines, delay=chance.uniform(0, 0.02))
            kills += killed
        assert_pieces_of(expected, lines_written(home))


def assert_pieces_of(expected, lives):
    logged = 0
    for seen, lines in lives:
        assert seen in (logged - 1, logged)
        assert lines == expected[seen : seen + len(lines)]
        logged = seen + len(lines)
    assert logged == len(expected)


def test_the_uninterrupted_run_is_what_it_should_be(tmp_path):
    batches = [line.split("] ") for line in uninterrupted("shuffled", 0, tmp_path / "run")]
    assert len(batches) == EPOCHS * -(-SAMPLES // BATCH)
    samples = [(int(epoch), sample) for text, _ in batches for epoch, sample in samples_of(text)]
    assert sorted(samples) == [(epoch, sample) for epoch in range(EPOCHS) for sample in range(SAMPLES)]
    assert len({pixels for _, pixels in batches}) == len(batches)


def samples_of(text):
    epoch, labels = text.split(" [")
    return [(epoch, int(label)) for label in labels.split(", ")]


@pytest.mark.parametrize(("before", "after", "padding"), [(2, 1, 0), (2, 4, 2), (4, 2, 0)])
def test_g10_ranks_are_gone_on_with_by_fewer_or_more(before, after, padding, tmp_path):
    """Every sample of the epoch comes once, augmented as in the uninterrupted run, apart from those that fill it up.

    50 samples are 13 for each of four ranks and two to fill up, at places 50 and 51, augmented as is due there.
    """
    (tmp_path / "expected").mkdir()
    expected = live_as_ranks(2, tmp_path / "expected")
    assert sorted(row[:2] for row in expected) == [(epoch, sample) for epoch in range(2) for sample in range(50)]
    rows = live_as_ranks(before, tmp_path, stop_after=2)
    assert len(rows) == before * 2 * BATCH
    rows += live_as_ranks(after, tmp_path)
    assert Counter(expected) <= Counter(rows)
    assert len(rows) == len(expected) + 2 * padding
