"""The timeline, the trace and the bars: what is in them, and that they are written."""

import json

import pytest
import torch

import fastload as fl
from fastload.bench.harness.bars import draw_bars
from fastload.bench.harness.result import Result
from fastload.report.timeline import lanes_of
from tests.report.faults import BATCH, consume, loader_of, wait

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def report():
    loader = fl.PrefetchLoader(loader_of(wait(0.001), samples=16 * BATCH), (0.5,) * 3, (0.5,) * 3, device="cpu")
    consume(loader, 0.002)
    return loader.report(show=False)


def test_lanes_show_each_batch_in_each_stage_in_order(report):
    lanes = lanes_of(report.batches, has_device=False)
    assert [lane.name for lane in lanes] == ["loader", "prefetch thread", "training"]
    for lane in lanes:
        assert all(bar.begin <= bar.end for bar in lane.bars)
        assert [bar.batch for bar in lane.bars] == sorted(bar.batch for bar in lane.bars)
    for batch in report.batches:
        assert batch.host["load"].end <= batch.host["prepare"].begin <= batch.device["stall"].end


def test_a_gpu_has_lanes_of_its_own(report):
    names = [lane.name for lane in lanes_of(report.batches, has_device=True)]
    assert names == ["loader", "prefetch thread", "GPU, fastload", "GPU, training"]


@pytest.mark.parametrize(("name", "dark"), [("timeline.png", False), ("timeline.svg", True)])
def test_the_timeline_is_drawn(report, tmp_path, name, dark):
    report.plot(tmp_path / name, steps=4, dark=dark)
    assert (tmp_path / name).stat().st_size > 1000


def test_a_report_draws_and_traces_on_request(tmp_path):
    loader = fl.watch(loader_of(samples=8 * BATCH), device="cpu")
    consume(loader)
    loader.report(plot=tmp_path / "a.svg", trace=tmp_path / "a.json", show=False)
    assert {path.name for path in tmp_path.iterdir()} == {"a.svg", "a.json"}


def test_pictures_that_cannot_be_drawn_are_refused(report, tmp_path):
    with pytest.raises(ValueError, match=r"\.png, \.svg or \.pdf; got"):
        report.plot(tmp_path / "timeline.txt")
    with pytest.raises(ValueError, match="steps must be an int of at least 1; got 0"):
        report.plot(tmp_path / "timeline.png", steps=0)
    with pytest.raises(ValueError, match="nothing to plot: 0 batches"):
        fl.watch([], device="cpu").report(plot=tmp_path / "timeline.png", show=False)


def test_the_trace_lies_on_the_profilers_clock(tmp_path):
    """A step of training is within the bar that the trace has for it."""
    loader = fl.PrefetchLoader(loader_of(samples=12 * BATCH), device="cpu")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in loader:
            with torch.profiler.record_function("step of the user"):
                wait(0.01)(0)
    profiler.export_chrome_trace(str(tmp_path / "profiler.json"))
    loader.report(show=False).trace(tmp_path / "both.json", profiler=tmp_path / "profiler.json")
    events = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    steps = sorted(event["ts"] for event in events if event.get("name") == "step of the user")
    bars = sorted(event["ts"] for event in events if event.get("name") == "training" and event["pid"] == "fastload")
    assert len(bars) >= 8
    half_a_step = 5_000  # µs
    assert all(abs(step - bar) < half_a_step for step, bar in zip(steps, bars, strict=False))


ROW = {"case": "a", "metric": "img_per_s", "median": 1.0, "iqr": 0.1, "runs": 2}


@pytest.mark.parametrize("ratio", [{}, {"ratio_to_limit": 0.5, "ratio_iqr": 0.02}])
def test_bars_of_a_result_are_drawn(tmp_path, ratio):
    rows = [{**ROW, **ratio, "subject": subject} for subject in ("limit", "fastload")]
    assert draw_bars(Result("jpeg", {"device": "a GPU"}, rows), tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 1000


def test_a_result_without_rows_has_no_bars(tmp_path):
    assert not draw_bars(Result("jpeg", {"device": "a GPU"}, []), tmp_path / "bars.png")
