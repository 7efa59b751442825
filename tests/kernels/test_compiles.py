"""Every kernel that is written for more than one case compiles for a GPU in each of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.mark.interpreter
@pytest.mark.parametrize("kernel", ["normalize", "colour", "resample"])
def test_its_variants_compile(kernel):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.compiled", kernel]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert run.stdout.strip() == "compiled", run.stderr
