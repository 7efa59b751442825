"""What cores that fall asleep cost a training process, measured by keeping them awake."""

import json
import os
import runpy
import struct
import subprocess
import sys
import threading
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not Path("/proc/self/schedstat").exists(), reason="the system does not tell how long threads ran"
    ),
]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "wake_ups.py"
wake_ups = SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def children():
    return {int(process) for process in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def seconds_run(processes):
    return sum(int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9 for process in processes)


def test_processes_keep_each_core_awake_within_their_context_only():
    before = children()
    with wake_ups.spinners() as spinning:
        started = children() - before
        assert len(started) == len(os.sched_getaffinity(0))
        assert {os.sched_getscheduler(process) for process in started} == {os.SCHED_IDLE}
        with spinning():
            time.sleep(0.2)
        ran = seconds_run(started)
        assert ran > 0.01
        time.sleep(0.2)
        assert seconds_run(started) < ran + 0.05
    assert not started & children()


def test_linux_is_asked_for_cores_that_wake_up_at_once(tmp_path, monkeypatch):
    asked = tmp_path / "cpu_dma_latency"
    asked.touch()
    monkeypatch.setitem(wake_ups.without_latency.__wrapped__.__globals__, "LATENCY", asked)
    with wake_ups.without_latency():
        assert struct.unpack("i", asked.read_bytes()) == (0,)


def test_threads_stay_on_a_few_cores_within_their_context_only():
    everywhere, over = os.sched_getaffinity(0), threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    with wake_ups.together(1):
        here, there = (os.sched_getaffinity(each) for each in (0, thread.native_id))
    assert here == there
    assert len(here) == 1
    assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id) == everywhere
    over.set()
    thread.join()


def test_ways_that_this_system_does_not_allow_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(wake_ups.ways.__wrapped__.__globals__, "LATENCY", tmp_path / "cpu_dma_latency")
    monkeypatch.setitem(wake_ups.ways.__wrapped__.__globals__, "SPIN", "raise OSError")
    before = children()
    with wake_ups.ways() as found:
        assert not found.keys() & {"latency", "spinning"}
    assert children() == before
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="trains at full size where there is a GPU")
def test_each_input_is_measured_with_each_way(tmp_path):
    out = tmp_path / "wake_ups.json"
    command = [sys.executable, SCRIPT, f"--out={out}", "--seconds=0", "--images=2"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=SCRIPT.parents[1], timeout=240)
    found = json.loads(out.read_text())
    assert "as they are" in found["wake_up_us"]
    assert {(row["input"], row["cores"]) for row in found["rows"]} == set(product(("kept", "fed"), found["wake_up_us"]))
    assert all(0 < took["median"] <= took["p90"] for took in found["wake_up_us"].values())
    assert all(row["step_ms"] > 0 < row["training"]["ran_ms"] for row in found["rows"])
    assert "two threads wake each other" in done.stdout


def test_a_subject_that_is_not_there_is_refused(tmp_path):
    refused = CliRunner().invoke(wake_ups.app, [f"--out={tmp_path / 'wake_ups.json'}", "--subject=tar"])
    assert refused.exit_code == 2
    assert "fastload" in refused.output
