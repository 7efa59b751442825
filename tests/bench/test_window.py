"""What a window of a benchmark counts."""

import subprocess
import sys
import time

import pytest

from fastload.bench.harness.window import cpu_seconds, cpu_seconds_since

BUSY = "import sys\nprint('begun', flush=True)\nwhile True: pass"


@pytest.fixture
def busy():
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    with process:
        process.stdout.readline()
        yield process
        process.kill()


def used_by(pid, least):
    """What a process has used, once that is ``least`` seconds."""
    while True:
        for process, seconds in cpu_seconds().items():
            if process.pid == pid and seconds >= least:
                return seconds
        time.sleep(0.01)


def test_processor_time_is_that_of_started_processes_too(busy):
    already = used_by(busy.pid, 0.0)
    begin = cpu_seconds()
    used_by(busy.pid, already + 0.5)
    assert cpu_seconds_since(begin) >= 0.3


def test_a_process_that_ends_takes_nothing_away(busy):
    used_by(busy.pid, 0.5)
    begin = cpu_seconds()
    busy.kill()
    busy.wait()
    assert cpu_seconds_since(begin) >= 0.0
