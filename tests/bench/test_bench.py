"""The benchmark: every suite end to end at its tiny size, and what a result file promises."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import islice

import psutil
import pytest
import torch
from rich.console import Console
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import fresh_inductor_cache
from typer.testing import CliRunner

from fastload import bench
from fastload.bench.harness import result
from fastload.bench.harness.plan import Plan
from fastload.bench.harness.process import in_new_process
from fastload.bench.harness.suite import Sizes, Suite
from fastload.bench.harness.turns import Figure, by_turns
from fastload.bench.harness.window import Window
from fastload.bench.subjects import normalizers, stages, steps, transfers, view_stages
from fastload.bench.subjects.file_windows import CAPTURING, FileWindows, look, write_photographs
from fastload.bench.subjects.training import compiled, compiling
from fastload.bench.suites import ddp, jpeg, oneline
from fastload.cli import app
from fastload.environment import cores
from fastload.training.step_graphs import WARM_UP
from tests.native_threads import RESTING

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(torch.cuda.is_available(), reason="measures at full size where there is a GPU"),
    pytest.mark.usefixtures("one_thread"),  # the other cores are for the loaders' workers
]


@pytest.fixture
def console():
    return Console(record=True, width=200)


@pytest.fixture
def resting(monkeypatch):
    """Ranks that are started fork workers safely."""
    for name, value in RESTING.items():
        monkeypatch.setenv(name, value)


def measured(path):
    return bench.Result.read(path).rows


def plan(runs, *subjects):
    return Plan("case", None, subjects, runs, torch.device("cpu"))


def scripted(**values):
    """A ``measure`` that returns each subject's next value as its metric ``m``, and the order of its calls."""
    left = {subject: iter(each) for subject, each in values.items()}
    order = []

    def measure(subject):
        order.append(subject)
        value = next(left[subject])
        return {"m": Figure(value, {"twice": 2 * value, "unknown": None})}

    return measure, order


def test_a_ratio_is_taken_within_a_run_and_its_median_over_the_runs():
    measure, order = scripted(base=[1, 2, 4], own=[3, 2, 2])
    rows = by_turns(plan(3), ["base", "own"], measure, ratios={"m": "base"}, variant="v")
    assert order == ["base", "own", "own", "base", "base", "own"]
    first, second = rows
    assert (first["subject"], first["ratio_to_base"], first["median"], first["runs"]) == ("base", 1, 2, 3)
    assert (second["subject"], second["ratio_to_base"], second["median"], second["variant"]) == ("own", 1, 2, "v")
    assert second["ratio_iqr"] == (3 + 1) / 2 - (1 + 0.5) / 2
    assert second["twice"] == 4
    assert "unknown" not in second


def test_a_ratio_to_the_limit_is_to_the_mean_of_those_before_and_after():
    measure, order = scripted(limit=[1, 3, 5], own=[1, 8])
    limit, own = by_turns(plan(2), ["own"], measure, ratios={"m": "limit"}, around="limit")
    assert order == ["limit", "own", "limit", "own", "limit"]
    assert (limit["runs"], limit["ratio_to_limit"]) == (3, 1)
    assert own["ratio_to_limit"] == (1 / 2 + 8 / 4) / 2


def test_the_limit_can_be_measured_alone():
    measure, order = scripted(limit=[7])
    (row,) = by_turns(plan(2), [], measure, ratios={"m": "limit"}, around="limit")
    assert (order, row["median"]) == (["limit"], 7)


def test_a_summary_is_of_the_values_of_all_runs():
    measure, _ = scripted(own=[1, 2, 6])
    (row,) = by_turns(plan(3), ["own"], measure, summary=lambda values: {"mean": sum(values) / len(values)})
    assert (row["mean"], row["median"]) == (3, 2)
    assert not any(key.startswith("ratio") for key in row)


def test_kernels_measures_every_subject_in_both_formats(tmp_path, console):
    rows = measured(bench.prepare("kernels", runs=2, out=tmp_path).run(console))
    lines = {(row["case"], row["variant"], row["subject"]) for row in rows}
    peers = {"compile", "timm", "torchvision", "kornia", "kornia_compiled"}
    names = {"floor", "fastload", *peers} & {row["subject"] for row in rows}
    assert {"floor", "fastload", "compile", "torchvision"} <= names
    formats = ("contiguous", "channels_last")
    absent = {
        "normalize": {"kornia_compiled"},
        "flip_normalize": {"timm", "kornia_compiled"},
        "rrc_flip_normalize": {"timm", "compile"},
        "deit_recipe": {"timm", "compile"},
        "detection_resize": {"timm", "compile", "kornia_compiled"},
    }
    assert lines == {
        (case, variant, name) for case, others in absent.items() for variant in formats for name in names - others
    }
    for row in rows:
        assert row["metric"] == "us"
        assert row["runs"] == 2
        assert row["ratio_to_floor"] > 0
        assert ("host_us" in row) == (row["subject"] != "floor")


def test_resident_measures_every_loader_next_to_the_limit(tmp_path, console):
    session = bench.prepare("resident", cases=["vit_b16_b128"], runs=1, out=tmp_path)
    rows = {row["subject"]: row for row in measured(session.run(console))}
    assert list(rows) == session.subjects
    assert {"limit", "plain", "fastload"} <= set(rows)
    assert rows["limit"]["ratio_to_limit"] == 1
    assert all(row["metric"] == "img_per_s" and row["ratio_to_limit"] > 0 for row in rows.values())


def test_first_steps_as_graphs_begin_once_a_graph_is_captured_for_each_place_of_a_batch():
    with FileWindows.open(jpeg.CPU_SIZE, torch.device("cpu")) as windows:
        batches = stages.STAGES["fastload"](replace(windows.files, static=True))
        with closing(batches):
            places = {images.data_ptr() for images, _ in islice(batches, 12)}
    assert WARM_UP + len(places) == CAPTURING


def test_jpeg_measures_every_stage_next_to_the_limit(tmp_path, console):
    session = bench.prepare("jpeg", cases=["vit_b16_b128"], runs=1, out=tmp_path)
    rows = {row["subject"]: row for row in measured(session.run(console))}
    assert list(rows) == session.subjects
    assert {"limit", "fastload_cpu_decode", "fastload"} <= set(rows)
    assert rows["limit"]["ratio_to_limit"] == 1
    for name, row in rows.items():
        assert (row["metric"], row["variant"]) == ("img_per_s", "ordinary")
        assert row["ratio_to_limit"] > 0
        assert row["cpu_ms_per_img"] >= 0  # counted in steps of 10 ms, and a window here may be shorter
        assert 0 <= row["wait_p50_ms"] <= row["wait_p99_ms"] <= row["wait_max_ms"]
        assert ("first_share" in row) == (name in {"fastload", "offload"} or name.startswith("dali"))
        assert ("first_wait_p99_ms" in row) == ("first_share" in row)


def test_views_are_made_in_workers_and_on_the_device(tmp_path, console):
    rows = {row["subject"]: row for row in measured(bench.prepare("views", runs=1, out=tmp_path).run(console))}
    assert list(rows) == ["limit", "workers", "fastload"]
    assert rows["limit"]["ratio_to_limit"] == 1
    assert all(row["metric"] == "img_per_s" and row["ratio_to_limit"] > 0 for row in rows.values())


def test_views_have_no_figures_where_two_are_exchanged(tmp_path, monkeypatch):
    def exchanged(files):
        for views, labels in view_stages.fastload(files):
            yield [views[2], views[1], views[0], *views[3:]], labels

    monkeypatch.setitem(view_stages.STAGES_OF_VIEWS, "fastload", exchanged)
    with pytest.raises(bench.WrongValuesError, match="fastload is wrong"):
        bench.prepare("views", subjects=["fastload"], runs=1, out=tmp_path).run()


def test_oneline_is_measured_between_turns_of_the_plain_loop(tmp_path, console):
    rows = measured(bench.prepare("oneline", cases=["vit_b16_b128"], runs=2, out=tmp_path).run(console))
    limit = rows.pop(0)
    assert (limit["subject"], limit["runs"], "variant" in limit) == ("limit", 1, False)
    variants = sorted(f"{workers}_workers" for workers in oneline.worker_counts())
    assert [(row["variant"], row["subject"], row["runs"]) for row in rows] == [
        (variant, subject, 2) for variant in variants for subject in ("plain", "oneline")
    ]
    for row in rows:
        assert row["metric"] == "img_per_s"
        assert row["ratio_to_plain"] > 0
        assert (row["ratio_to_plain"] == 1) == (row["subject"] == "plain")
        assert "peak_gib" not in row


def test_oneline_has_no_figures_where_wrong_images_are_delivered(tmp_path, monkeypatch):
    def with_labels_of_others(files):
        for images, labels in stages.oneline(files):
            yield images, labels.roll(1)

    monkeypatch.setitem(stages.STAGES, "oneline", with_labels_of_others)
    with pytest.raises(bench.WrongValuesError, match="oneline is wrong"):
        bench.prepare("oneline", cases=["vit_b16_b128"], runs=1, out=tmp_path).run()
    assert not list(tmp_path.iterdir())


def test_what_has_been_measured_of_a_case_is_kept_where_the_rest_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(oneline, "worker_counts", lambda: [1, 2])
    started = oneline.PausedStage.start

    def failing(name, files, step):
        if files.workers == 2:
            raise RuntimeError("no memory for a second worker")
        return started(name, files, step)

    monkeypatch.setattr(oneline.PausedStage, "start", failing)
    session = bench.prepare("oneline", cases=["vit_b16_b128"], runs=1, out=tmp_path)
    with pytest.raises(RuntimeError, match="no memory"):
        session.run()
    assert [row.get("variant") for row in measured(session.path)] == [None, "1_workers", "1_workers"]


@pytest.mark.parametrize(("cores_to_decode", "counts"), [(15, [4, 12, 15]), (7, [4, 7]), (1, [1])])
def test_oneline_leaves_a_core_for_training(cores_to_decode, counts, monkeypatch):
    monkeypatch.setattr(oneline, "decoding_workers", lambda: cores_to_decode)
    assert oneline.worker_counts() == counts


@pytest.mark.parametrize("name", ["plain", "oneline"])
def test_workers_stand_still_but_in_their_turns(name, tmp_path):
    device = torch.device("cpu")
    files = stages.JpegFiles(write_photographs(str(tmp_path), 20), batch=4, side=32, device=device, workers=2)
    while_training = []

    def step(images, labels):
        while_training.extend(worker.status() for worker in started)
        return look(images, labels)

    started = []
    with oneline.PausedStage.start(name, files, step) as stage:
        started.extend(stage.workers)
        assert len(started) == 2
        for _ in range(2):
            wait_until_all_are_stopped(started)
            assert len(stage.turn(step, steps=3).window.waits) == 3
        wait_until_all_are_stopped(started)
    assert len(while_training) == 2 * 2 * 3
    assert psutil.STATUS_STOPPED not in while_training
    assert not any(worker.is_running() for worker in started)


@pytest.mark.parametrize("name", ["plain", "oneline"])
def test_a_turn_counts_the_images_that_its_workers_decode(name, tmp_path):
    files = stages.JpegFiles(
        write_photographs(str(tmp_path), 20), batch=4, side=32, device=torch.device("cpu"), workers=2
    )
    with oneline.PausedStage.start(name, files, look) as stage:
        wait_until_all_are_stopped(stage.workers)
        before = stage.decoded.total()
        turn = stage.turn(look, steps=20)
        wait_until_all_are_stopped(stage.workers)
        decoded = stage.decoded.total() - before
    in_queues = 2 * files.workers * files.batch
    assert abs(decoded - 20 * files.batch) <= in_queues
    # After the turn has read them, and until its signal arrives, a worker may decode some more.
    assert decoded - files.batch <= turn.images <= decoded


def test_the_speed_of_several_turns_is_all_their_images_over_all_their_seconds():
    def stretch(images, seconds, waits):
        window = Window(99.0, peak_gib=7.0, cpu_s_per_step=0.5, waits=waits, gaps=waits)
        return oneline.Stretch(images, seconds, window)

    figure = oneline.Stretch.img_per_s([stretch(30, 1.0, [0.1, 0.2]), stretch(10, 3.0, [0.3])])["img_per_s"]
    assert figure.value == 10
    assert figure.beside["cpu_ms_per_img"] == pytest.approx(1e3 * 3 * 0.5 / 40)
    assert figure.beside["wait_max_ms"] == pytest.approx(300)
    assert figure.beside["wait_p50_ms"] == pytest.approx(200)
    assert figure.beside["peak_gib"] is None


def wait_until_all_are_stopped(processes):
    """Return once they are: a signal takes a moment to arrive."""
    while any(process.status() != psutil.STATUS_STOPPED for process in processes):
        pass


def test_jpeg_measures_loaders_alone(tmp_path, console):
    rows = measured(bench.prepare("jpeg", cases=["loader"], subjects=["fastload"], runs=1, out=tmp_path).run(console))
    assert [(row["subject"], row["metric"]) for row in rows] == [("fastload", "loader_img_per_s")]


@pytest.mark.skipif(cores() < 2, reason="starts two ranks")
@pytest.mark.usefixtures("resting")
def test_ddp_measures_all_ranks_together_next_to_the_limit(tmp_path, console):
    rows = measured(bench.prepare("ddp", cases=["resnet50_b256_x2"], runs=1, out=tmp_path).run(console))
    assert [row["subject"] for row in rows] == ["limit", "fastload"]
    assert rows[0]["ratio_to_limit"] == 1
    assert all(row["metric"] == "img_per_s" and row["ratio_to_limit"] > 0 for row in rows)
    assert all(row["gap_max_ms"] >= row["gap_p99_ms"] > 0 and row["cpu_ms_per_img"] >= 0 for row in rows)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="there is no list of cores")
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_ranks_of_ddp_share_out_the_cores(ranks):
    mine = os.sched_getaffinity(0)
    shares = []
    try:
        for rank in range(ranks):
            ddp._keep_to_own_cores(rank, ranks)
            shares.append(os.sched_getaffinity(0))
            os.sched_setaffinity(0, mine)
    finally:
        os.sched_setaffinity(0, mine)
    if len(mine) < ranks:
        assert shares == [mine] * ranks
    else:
        assert sorted(itertools.chain.from_iterable(shares)) == sorted(mine)


def test_ddp_has_no_figures_where_wrong_images_are_delivered(tmp_path, monkeypatch):
    def with_labels_of_others(files):
        for images, labels in stages.fastload(files):
            yield images, labels.roll(1)

    monkeypatch.setitem(stages.STAGES, "fastload", with_labels_of_others)
    with pytest.raises(bench.WrongValuesError, match="fastload is wrong"):
        bench.prepare("ddp", cases=["resnet50_b256_x1"], runs=1, out=tmp_path).run()
    assert not list(tmp_path.iterdir())


def test_cases_are_measured_in_the_order_in_which_they_are_named(tmp_path):
    named = ["loader", "resnet18_b512", "loader"]
    assert bench.prepare("jpeg", cases=named, out=tmp_path).cases == ["loader", "resnet18_b512"]
    assert bench.prepare("jpeg", out=tmp_path).cases[-1] == "loader"


def test_each_case_is_compiled_for_its_own_size(tmp_path):
    compiled_for = []

    def backend(module, inputs):
        compiled_for.append([type(size) for tensor in inputs for size in tensor.shape])
        return module.forward

    def doubled(images):
        return 2 * images

    def measure(plan):
        torch.compile(doubled, backend=backend)(torch.ones(plan.size))
        return []

    cases = {"few": Sizes(4, 4), "more": Sizes(6, 6)}
    suite = Suite("sizes", cases, ["limit"], "limit", packages={}, runs=1, settings=lambda _: {}, measure=measure)
    bench.prepare(suite, out=tmp_path).run()
    assert compiled_for == [[int], [int]]


def starts_workers_by():
    return multiprocessing.get_start_method()


def test_what_has_a_process_of_its_own_starts_workers_as_usual():
    assert in_new_process(os.getpid) != os.getpid()
    assert in_new_process(starts_workers_by) == multiprocessing.get_start_method()


def stays():
    print(os.getpid(), flush=True)
    try:
        time.sleep(60)
    finally:
        print("loaders say here that they were interrupted", flush=True)


STAYS = """
import signal
from fastload.bench.harness.process import in_new_process
from tests.bench.test_bench import stays
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without
try:
    in_new_process(stays)
except KeyboardInterrupt:
    print("interrupted")
"""


@contextmanager
def process_that_stays():
    """A program, and the process of its own that it waits for; both are a process group."""
    command = [sys.executable, "-c", STAYS]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as parent:
        yield parent, psutil.Process(next(int(line) for line in parent.stdout if line.strip().isdecimal()))


def test_a_process_of_its_own_ends_with_its_parent():
    with process_that_stays() as (parent, own):
        parent.kill()
        with suppress(psutil.NoSuchProcess):
            own.wait(30)


def test_an_interrupt_ends_a_process_of_its_own_without_a_word():
    with process_that_stays() as (parent, own):
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.communicate(timeout=60)[0] == "interrupted\n"
        assert not own.is_running()


def test_first_steps_are_the_median_of_processes_that_begin_with_another_subject_each(monkeypatch):
    shares = iter([{"dali": 0.9, "fastload": 0.8}, {"dali": 0.7, "fastload": 1.0}, {"dali": 0.8, "fastload": 0.95}])
    gaps = iter([4.0, 1.0, 2.0])
    orders = []

    def scripted_process(call, _size, _root, order, _device, variant):
        assert (call, variant) == (jpeg.first_steps_of, "graph")
        orders.append(order)
        gap = next(gaps)
        return {name: {"ratio_to_limit": share, "gap_p99_ms": gap} for name, share in next(shares).items()}

    monkeypatch.setattr(jpeg, "in_new_process", scripted_process)
    with FileWindows.open(jpeg.CPU_SIZE, torch.device("cpu")) as windows:
        found = jpeg._first_steps(plan(3), windows, ["dali", "fastload"], "graph")
    assert {name: each["first_share"] for name, each in found.items()} == {"dali": 0.8, "fastload": 0.95}
    assert {name: each["first_iqr"] for name, each in found.items()} == pytest.approx({"dali": 0.1, "fastload": 0.1})
    assert {name: each["first_gap_p99_ms"] for name, each in found.items()} == {"dali": 2.0, "fastload": 2.0}
    assert orders == [["dali", "fastload"], ["fastload", "dali"], ["dali", "fastload"]]


def test_variants_of_the_step_can_be_chosen(tmp_path, monkeypatch):
    assert bench.prepare("jpeg", out=tmp_path).variants == ["ordinary"]
    with pytest.raises(ValueError, match="there is no variant 'graph'; choose from ordinary"):
        bench.prepare("jpeg", variants=["graph"], out=tmp_path)
    with pytest.raises(ValueError, match="there is no variant 'ordinary'; choose from none"):
        bench.prepare("resident", variants=["ordinary"], out=tmp_path)
    monkeypatch.setattr("fastload.bench.session.torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("fastload.bench.session.torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("fastload.bench.session.describe", lambda *_: {"device": "a GPU"})
    assert bench.prepare("ddp", out=tmp_path).variants == ["ordinary", "graph"]
    assert bench.prepare("ddp", variants=["graph", "cpp"], out=tmp_path).variants == ["graph", "cpp"]


def test_models_of_one_kind_launch_each_from_its_own_language(monkeypatch):
    codes = []
    monkeypatch.setattr(GraphLowering, "save_output_code", staticmethod(codes.append))
    models = {from_cpp: compiled(torch.nn.Linear(8, 8), from_cpp=from_cpp) for from_cpp in (False, True)}
    torch.compiler.reset()
    for from_cpp, model in models.items():
        with compiling(from_cpp=from_cpp), fresh_inductor_cache():
            model(torch.ones(8, 8)).square().sum().backward()
        assert ["CppWrapperCodeCache" in code for code in codes] == [from_cpp] * 2  # forward's and backward's
        codes.clear()
    models[False](torch.ones(8, 8)).square().sum().backward()
    assert not codes


def test_ddp_leaves_out_cases_with_more_ranks_than_devices(tmp_path, monkeypatch):
    monkeypatch.setattr("fastload.bench.session.cores", lambda: 2)
    assert bench.prepare("ddp", out=tmp_path).cases == ["resnet50_b256_x1", "resnet50_b256_x2"]
    with pytest.raises(ValueError, match="resnet50_b256_x4 needs 4 cores, and there are 2: choose other cases"):
        bench.prepare("ddp", cases=["resnet50_b256_x2", "resnet50_b256_x4"], out=tmp_path)


def test_accuracy_compares_the_same_recipe_over_seeds(tmp_path, console):
    rows = measured(bench.prepare("accuracy", runs=2, out=tmp_path).run(console))
    metrics = ("eval_loss", "eval_accuracy")
    assert {(row["subject"], row["metric"]) for row in rows} == {(s, m) for s in ("pil", "fastload") for m in metrics}
    assert all(row["runs"] == 2 and row["std"] >= 0 for row in rows)
    accuracies = [row["mean"] for row in rows if row["metric"] == "eval_accuracy"]
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)


def test_ladder_measures_every_rung(tmp_path, console):
    rows = measured(bench.prepare("ladder", runs=1, out=tmp_path).run(console))
    metrics = {
        "img_per_s",
        "ms",
        "final_loss",
        "eval_img_per_s",
        "eval_img_per_s_autocast",
        "eval_loss",
        "eval_loss_autocast",
        "eval_accuracy",
        "eval_accuracy_autocast",
    }
    rungs = ("fp32", "amp", "set_to_none", "non_blocking", "prefetch", "bf16_fused", "limit")
    assert [(row["subject"]) for row in rows if row["metric"] == "img_per_s"] == list(rungs)
    assert {(row["subject"], row["metric"]) for row in rows} == {(rung, m) for rung in rungs for m in metrics}
    figures = {(row["subject"], row["metric"]): row for row in rows}
    # The same seed and batches, and on the CPU the same precision too.
    assert figures["amp", "final_loss"]["first_loss"] == figures["prefetch", "final_loss"]["first_loss"]
    assert all(0 <= figures[rung, "eval_accuracy"]["median"] <= 1 for rung in rungs)
    assert 1000 / figures["fp32", "ms"]["median"] * 8 == pytest.approx(figures["fp32", "img_per_s"]["median"], rel=1e-4)


def test_transfer_measures_host_and_wall_time_of_both_kinds_of_memory(tmp_path, console):
    rows = measured(bench.prepare("transfer", runs=2, out=tmp_path).run(console))
    assert {(row["case"], row["variant"], row["subject"], row["metric"]) for row in rows} == set(
        itertools.product(
            ("maskrcnn_b16", "classification_b256", "dict_of_100"),
            ("pageable", "pinned"),
            ("per_tensor", "fastload"),
            ("host_us", "wall_us"),
        )
    )
    for row in rows:
        assert row["median"] > 0
        assert row["ratio_to_per_tensor" if row["metric"] == "host_us" else "ratio_to_floor"] > 0
    assert "tiny size" in console.export_text()


def test_a_transfer_that_arrives_wrong_has_no_figures(tmp_path, monkeypatch):
    monkeypatch.setitem(transfers.TRANSFERS, "fastload", lambda _: lambda batch: (batch[0], batch[1] + 1))
    with pytest.raises(bench.WrongValuesError, match="fastload is wrong"):
        bench.prepare("transfer", cases=["classification_b256"], runs=1, out=tmp_path).run()
    assert not list(tmp_path.iterdir())


def test_step_measures_every_subject_beside_the_handwritten_loop(tmp_path, console):
    session = bench.prepare("step", cases=["vit_b16_b128", "resnet18_b64"], runs=1, out=tmp_path)
    rows = measured(session.run(console))
    assert {"handwritten", "fastload", *steps.GRAPHS} <= set(session.subjects)
    here = set(session.subjects) - steps.GRAPHS  # which the CPU has not
    assert {(row["case"], row["variant"], row["subject"]) for row in rows} == set(
        itertools.product(("vit_b16_b128", "resnet18_b64"), ("bf16",), here)
    )
    for row in rows:
        assert row["metric"] == "ms"
        assert row["median"] > 0
        assert (row["ratio_to_handwritten"] == 1) == (row["subject"] == "handwritten")
    assert "tiny size" in console.export_text()


def test_step_measures_a_model_that_returns_its_losses(tmp_path, console):
    session = bench.prepare("step", cases=["maskrcnn_b4"], subjects=["fastload"], runs=1, out=tmp_path)
    assert [row["subject"] for row in measured(session.run(console))] == ["handwritten", "fastload"]


def test_a_step_that_trains_otherwise_has_no_figures(tmp_path, monkeypatch):
    monkeypatch.setitem(steps.STEPS, "fastload", lambda _: lambda images, _: images.mean())
    with pytest.raises(bench.WrongValuesError, match="fastload is wrong: its first losses are"):
        bench.prepare("step", cases=["vit_b16_b128"], subjects=["fastload"], runs=1, out=tmp_path).run()
    assert not list(tmp_path.iterdir())


def quick(case="normalize", subjects=("torchvision",), **options):
    return bench.prepare("kernels", cases=[case], subjects=subjects, runs=1, **options)


def test_file_says_what_was_measured_on_what(tmp_path, console, monkeypatch):
    monkeypatch.setenv("FASTLOAD_COMMIT", "0123456789abcdef-dirty")
    path = quick(out=tmp_path).run(console)
    assert path == tmp_path / "kernels--cpu.json"
    content = json.loads(path.read_text())
    assert set(content) == {"suite", "meta", "rows"}
    assert set(content["meta"]) == result.META_KEYS
    assert all(set(row) >= result.ROW_KEYS for row in content["rows"])
    meta = content["meta"]
    assert (meta["git_commit"], meta["git_dirty"]) == ("0123456789abcdef", True)
    assert (meta["device"], meta["torch"]) == ("cpu", torch.__version__)
    assert list(meta["wall_s"]) == ["normalize"]
    assert "tiny size" in console.export_text()


def test_a_second_run_of_the_same_commit_adds_its_rows(tmp_path, console, monkeypatch):
    monkeypatch.setenv("FASTLOAD_COMMIT", "one")
    quick("flip_normalize", out=tmp_path).run(console)
    quick("normalize", out=tmp_path).run(console)
    path = quick("normalize", ["fastload"], out=tmp_path).run(console)
    merged = bench.Result.read(path)
    assert [(row["case"], row["subject"]) for row in merged.rows if row["variant"] == "contiguous"] == [
        ("normalize", "floor"),
        ("normalize", "fastload"),
        ("normalize", "torchvision"),
        ("flip_normalize", "floor"),
        ("flip_normalize", "torchvision"),
    ]
    assert set(merged.meta["wall_s"]) == {"normalize", "flip_normalize"}


def test_a_run_of_another_commit_replaces_the_file(tmp_path, console, monkeypatch):
    monkeypatch.setenv("FASTLOAD_COMMIT", "one")
    quick("flip_normalize", out=tmp_path).run(console)
    monkeypatch.setenv("FASTLOAD_COMMIT", "two")
    rows = measured(quick("normalize", out=tmp_path).run(console))
    assert {row["case"] for row in rows} == {"normalize"}
    assert "will be replaced" in console.export_text()


def test_a_missing_peer_is_named_and_the_others_are_measured(tmp_path, console):
    suite = replace(bench.SUITES["kernels"], packages={"kornia": "no-such-package"})
    session = bench.prepare(suite, cases=["normalize"], subjects=["kornia", "torchvision"], runs=1, out=tmp_path)
    found = bench.Result.read(session.run(console))
    assert found.meta["missing"] == ["kornia"]
    assert {row["subject"] for row in found.rows} == {"floor", "torchvision"}
    assert "kornia is missing: no-such-package is not installed" in console.export_text()


def test_wrong_values_have_no_figures(tmp_path, monkeypatch):
    monkeypatch.setitem(normalizers.NORMALIZERS, "torchvision", lambda *_: lambda images, _flip: images.bfloat16())
    arguments = ["bench", "kernels", "--cases", "normalize", "--subjects", "torchvision", "--out", str(tmp_path)]
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 1
    assert "torchvision is wrong" in outcome.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nothing"],
            "there is no suite 'nothing'; choose from kernels, resident, jpeg, ladder, accuracy",
        ),
        (["kernels", "--cases", "rotate"], "there is no case 'rotate'; choose from normalize, flip_normalize"),
        (["kernels", "--subjects", "me"], "there is no subject 'me'; choose from floor, fastload"),
    ],
)
def test_wrong_names_are_refused_with_what_is_allowed(arguments, message, tmp_path):
    outcome = CliRunner().invoke(app, ["bench", *arguments, "--out", str(tmp_path)])
    assert outcome.exit_code == 2
    assert message in outcome.output


def test_a_file_that_is_no_result_is_not_overwritten(tmp_path):
    (tmp_path / "kernels--cpu.json").write_text('{"suite": "kernels", "rows": []}')
    outcome = CliRunner().invoke(app, ["bench", "kernels", "--out", str(tmp_path)])
    assert outcome.exit_code == 2
    assert "is no result file: the file lacks meta" in outcome.output


def test_no_fewer_than_one_run():
    with pytest.raises(ValueError, match="runs must be at least 1, how often each subject is measured; got 0"):
        bench.prepare("kernels", runs=0)
