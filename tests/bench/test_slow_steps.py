"""The watcher of a training process tells which threads ran, waited and slept in slow steps."""

import hashlib
import json
import os
import runpy
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not Path("/proc/self/schedstat").exists(), reason="the system does not tell how long threads ran"
    ),
]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "slow_steps.py"
slow = SimpleNamespace(**runpy.run_path(str(SCRIPT)))

ENDS = np.arange(5.0)  # of four steps of a second
IS_SLOW = np.array([False, True, True, False])


def test_a_step_is_slow_where_those_around_it_are():
    took = np.full(100, 0.046)
    took[20], took[21] = 0.056, 0.036  # the host makes up for it
    took[60:80] = 0.055
    found = set(np.flatnonzero(slow.slow_steps(took)).tolist())
    assert set(range(62, 78)) <= found <= set(range(56, 84))


def test_a_thread_is_told_by_what_it_did_in_slow_steps_and_in_others():
    ran = [0.0, 0.1, 0.6, 1.1, 1.2]
    waited = [0.0, 0.2, 0.5, 0.8, 1.0]
    asleep = [0, 10, 30, 50, 60]
    rows = np.array([ENDS, ran, waited, asleep, [3] * 5]).T
    told = slow.of_thread(rows, ENDS, IS_SLOW)
    assert told["slow"] == {"ran": 500, "waited": 300, "slept": 200, "fell_asleep": 20, "on_interrupt_core": 0}
    assert told["usual"] == {"ran": 100, "waited": 200, "slept": 700, "fell_asleep": 10, "on_interrupt_core": 0}
    assert told["ran_ms"] == [100, 500, 500, 100]
    assert told["core"] == [3] * 4


def worked(seconds):
    """Keep a core busy for so long, by the thread's own clock, and leave the interpreter to others."""
    block, end = bytes(2**20), time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.sha256(block)


def test_threads_that_run_and_that_sleep_are_told_apart():
    seen, begun = slow.Watched(), time.monotonic()
    busy = threading.Thread(target=worked, args=[0.2])
    idle = threading.Thread(target=time.sleep, args=[0.4])
    busy.start()
    idle.start()
    names = busy.native_id, idle.native_id
    while busy.is_alive():
        slow.look(os.getpid(), seen)
        time.sleep(slow.PERIOD)
    idle.join()
    rows, resting = (np.array(seen.threads[thread]) for thread in names)
    assert rows[-1, 1] - rows[0, 1] == pytest.approx(0.2, abs=0.05)
    assert resting[-1, 1] < 0.05
    assert begun < rows[0, 0] < rows[-1, 0] < time.monotonic()
    assert (np.diff(rows[:, 0]) > 0).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="trains at full size where there is a GPU")
def test_a_training_is_watched(tmp_path):
    out = tmp_path / "slow.json"
    command = [sys.executable, SCRIPT, f"--out={out}", "--steps=12", "--warm-up=2"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=SCRIPT.parents[1], timeout=240)
    found = json.loads(out.read_text())
    assert len(found["step_ms"]) == len(found["wait_ms"]) == 12
    assert f"{len(found['slow'])} of 12 steps are slow" in done.stdout
    threads = {row["thread"]: row for row in found["threads"]}
    assert {"MainThread", "fastload-prefetch", "fastload-decode", "fastload-pin"} <= threads.keys()
    assert sum(threads["MainThread"]["ran_ms"]) > 0
    assert found["machine"]["usual"]["loop_ms"] > 0


@pytest.mark.parametrize(("option", "told"), [("--model=vgg", "resnet50"), ("--subject=tar", "fastload")])
def test_what_cannot_be_watched_is_refused(option, told, tmp_path):
    refused = CliRunner().invoke(slow.app, [f"--out={tmp_path / 'slow.json'}", option])
    assert refused.exit_code == 2
    assert told in refused.output
