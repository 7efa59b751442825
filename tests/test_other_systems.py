"""macOS and Windows: a program runs on a Linux that lacks what they lack.

Their workers are spawned, not forked; they have no shared memory without a name, and no list of a process's cores.
"""

import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from tests.files import jpeg

EXAMPLE = Path(__file__).parents[1] / "examples" / "folder.py"
LACKING = """
import multiprocessing
import os

for name in ("fork", "forkpty", "memfd_create", "sched_getaffinity", "sched_setaffinity", "posix_fadvise", "sendfile"):
    delattr(os, name)
multiprocessing.set_start_method("spawn")
"""


@pytest.mark.long
def test_a_program_needs_nothing_that_linux_alone_has(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LACKING)  # Python imports it first, in workers too
    for number in range(8):
        file = tmp_path / "photographs" / f"class {number % 2}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(seed=number))
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    options = {"--size": "32", "--epochs": "1", "--batch-size": "4", "--workers": "1"}
    command = [sys.executable, str(EXAMPLE), "photographs", *chain(*options.items())]
    run = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "epoch 1: loss " in run.stdout
