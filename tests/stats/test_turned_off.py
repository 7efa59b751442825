"""Measuring can be turned off, and changes nothing but the figures."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import torch, fastload as fl
loader = fl.PrefetchLoader(torch.utils.data.DataLoader(torch.arange(6.0), batch_size=2), device="cpu")
print([batch.tolist() for batch in loader], loader.stats == fl.Stats())
print([batch.tolist() for batch in fl.watch(loader.loader, device="cpu")])
print(loader.report(show=False))
"""


@pytest.mark.long
def test_batches_come_and_a_report_says_that_nothing_is_known_of_them():
    environment = {**os.environ, "FASTLOAD_CLOCK": "off"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    batches = "[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]"
    assert run.stdout.splitlines()[:2] == [f"{batches} True", batches]
    assert "FASTLOAD_CLOCK is off" in run.stdout


@pytest.mark.long
def test_the_doctor_says_that_nothing_is_measured():
    environment = {**os.environ, "FASTLOAD_CLOCK": "0"}
    doctor = [sys.executable, "-m", "fastload", "doctor", "tests"]
    run = subprocess.run(doctor, capture_output=True, text=True, check=False, env=environment)
    assert (run.returncode, "FASTLOAD_CLOCK is off" in run.stderr) == (2, True)
