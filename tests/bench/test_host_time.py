"""What a training step takes of the host, by how it is launched and fed, and by whether cores are kept awake."""

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

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "host_time.py"
host_time = SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def children():
    return {int(process) for process in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def seconds_run(processes):
    return sum(int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9 for process in processes)


def test_processes_keep_each_core_awake_within_their_context_only():
    before = children()
    with host_time.spinners() as spinning:
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
    monkeypatch.setitem(host_time.without_latency.__wrapped__.__globals__, "LATENCY", asked)
    with host_time.without_latency():
        assert struct.unpack("i", asked.read_bytes()) == (0,)


def test_threads_stay_on_a_few_cores_within_their_context_only():
    everywhere, over = os.sched_getaffinity(0), threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    with host_time.together(1):
        here, there = (os.sched_getaffinity(each) for each in (0, thread.native_id))
    assert here == there
    assert len(here) == 1
    assert os.sched_getaffinity(0) == os.sched_getaffinity(thread.native_id) == everywhere
    over.set()
    thread.join()


def test_ways_that_this_system_does_not_allow_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(host_time.ways.__wrapped__.__globals__, "LATENCY", tmp_path / "cpu_dma_latency")
    monkeypatch.setitem(host_time.ways.__wrapped__.__globals__, "SPIN", "raise OSError")
    before = children()
    with host_time.ways() as found:
        assert not found.keys() & {"latency", "spinning"}
    assert children() == before
    assert not list(tmp_path.iterdir())


def test_only_what_is_wanted_is_begun():
    before = children()
    with host_time.ways(["as they are"]) as found:
        assert list(found) == ["as they are"]
        assert children() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="trains at full size where there is a GPU")
def test_each_input_is_measured_with_each_way_to_launch_and_to_keep_cores_awake(tmp_path):
    with host_time.ways() as there:
        cores = list(there)
    found, shown = trained(tmp_path, f"--cores={','.join(cores)}")
    assert list(found["wake_up_us"]) == cores
    turns = {(row["input"], row["variant"], row["cores"]) for row in found["rows"]}
    assert turns == set(product(("kept", "fed"), ("ordinary", "cpp"), cores))
    assert all(0 < took["median"] <= took["p90"] for took in found["wake_up_us"].values())
    assert all(row["step_ms"] > 0 < row["training"]["ran_ms"] for row in found["rows"])
    assert "two threads wake each other" in shown


@pytest.mark.skipif(torch.cuda.is_available(), reason="trains at full size where there is a GPU")
def test_cores_stay_as_they_are_if_nothing_else_is_asked_for(tmp_path):
    found, _ = trained(tmp_path, "--variants=cpp")
    assert {(row["variant"], row["cores"]) for row in found["rows"]} == {("cpp", "as they are")}


def trained(folder, option):
    """What the script writes, and what it shows."""
    out = folder / "host_time.json"
    command = [sys.executable, SCRIPT, f"--out={out}", "--seconds=0", "--images=2", option]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=SCRIPT.parents[1], timeout=240)
    return json.loads(out.read_text()), done.stdout


@pytest.mark.parametrize("option", ["--subject=tar", "--variants=graph", "--cores=hot"])
def test_a_name_that_is_not_known_is_refused(option, tmp_path):
    refused = CliRunner().invoke(host_time.app, [f"--out={tmp_path / 'host_time.json'}", option])
    assert refused.exit_code == 2
    assert option.partition("=")[2] in refused.output
