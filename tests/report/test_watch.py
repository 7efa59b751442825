"""Any loop is measured as it is, and reports come while it runs."""

import copy
import multiprocessing
import pickle

import pytest
import torch
from torch.utils.data import DataLoader

import fastload as fl
from fastload.report.verdict import Bound, Cause
from tests.report.faults import BATCH, consume, loader_of, wait


def test_a_watched_loader_yields_its_own_batches_and_answers_as_itself():
    loader = loader_of(samples=4 * BATCH)
    watched = fl.watch(loader, device="cpu")
    assert [labels.tolist() for _, labels in watched] == [labels.tolist() for _, labels in loader]
    assert (len(watched), watched.batch_size, watched.dataset) == (4, BATCH, loader.dataset)


def test_a_watched_loop_that_is_left_leaves_no_worker():
    watched = fl.watch(DataLoader(torch.zeros(64, 2), 4, num_workers=2), device="cpu")
    for _ in range(2):
        for _ in watched:
            break
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_watched_loader_has_measured_nothing(copied):
    watched = fl.watch([torch.zeros(2)] * 4, device="cpu")
    consume(watched)
    assert watched.stats.total.batches == 3
    other = copied(watched)
    assert (len(other), other.stats.total.batches) == (4, 0)


def test_a_plain_loop_that_waits_is_told_so():
    watched = fl.watch(loader_of(wait(0.003), samples=30 * BATCH), device="cpu")
    consume(watched, 0.002)
    report = watched.report(show=False)
    assert (report.verdict.bound, report.verdict.cause) == (Bound.INPUT, Cause.SLOW_READS)
    assert report.setup.depth is None


def test_a_plain_loop_that_does_not_wait_is_told_so():
    watched = fl.watch([torch.zeros(2)] * 8, device="cpu")
    consume(watched, 0.05)
    assert watched.report(show=False).verdict.bound is Bound.COMPUTE


def test_what_cannot_be_iterated_over_cannot_be_watched():
    with pytest.raises(TypeError, match="iterable of batches, such as a DataLoader; got int"):
        fl.watch(3)


def test_reports_come_every_so_many_batches_and_end_with_the_context():
    loader, told = fl.PrefetchLoader(loader_of(samples=20 * BATCH), device="cpu"), []
    with fl.report_every(loader, 8, tell=told.append):
        consume(loader)
    consume(loader)
    assert len(told) == 2
    assert all(isinstance(report, fl.Report) for report in told)


@pytest.mark.parametrize(
    ("arguments", "error"), [(([1], 5), TypeError), ((fl.watch([1], device="cpu"), 0), ValueError)]
)
def test_wrong_arguments_are_refused(arguments, error):
    with pytest.raises(error), fl.report_every(*arguments):
        pass


def test_a_report_is_text_table_and_json():
    import json  # noqa: PLC0415

    watched = fl.watch(loader_of(wait(0.002), samples=12 * BATCH), device="cpu")
    consume(watched)
    report = watched.report(show=False)
    text = str(report)
    assert text.startswith("Input-bound: the training thread waits for its input")
    assert "Change: num_workers=4 instead of 0" in text
    assert max(map(len, text.splitlines())) <= 80
    assert json.loads(report.json())["verdict"]["cause"] == "slow reads"


def test_a_report_prints_itself(capsys):
    fl.watch([], device="cpu").report()
    assert capsys.readouterr().out == "0 batches after the first are too few to judge by: at least 5\n"
