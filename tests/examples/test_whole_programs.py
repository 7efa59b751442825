"""Each example runs at its tiny size, by the command in its header."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ON_THE_CPU = {"CUDA_VISIBLE_DEVICES": ""}
VIT = str(EXAMPLES / "vit.py"), "--tiny"


def ranks(number: int) -> tuple[str, ...]:
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)
    return *torchrun, str(EXAMPLES / "multi_gpu.py"), "--tiny"


def start(home: Path, *command: str, **environment: str) -> subprocess.Popen:
    """Run Python in ``home``, in a process group of its own."""
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen(
        [sys.executable, *command], cwd=home, env=environment, text=True, stdout=subprocess.PIPE, start_new_session=True
    )


def printed(home: Path, *command: str, **environment: str) -> list[str]:
    with start(home, *command, **environment) as process:
        lines = process.communicate(timeout=240)[0].splitlines()
    assert process.returncode == 0
    return lines


def kill_at(text: str, home: Path, *command: str, **environment: str) -> None:
    """Kill the command and its workers as soon as it has printed ``text``."""
    with start(home, *command, **environment) as process:
        assert any(text in line for line in process.stdout)
        os.killpg(process.pid, signal.SIGKILL)


def updates(lines: list[str]) -> list[str]:
    """What is told of updates, the speed left out."""
    return [re.sub(", [0-9,]+ img/s", "", line) for line in lines if line.startswith("update")]


def test_vit_goes_on_where_it_was_killed(tmp_path):
    """Its losses, and the accuracies of weights and average, are those of a run that was not killed."""
    expected = updates(printed(tmp_path, *VIT, "--checkpoint", "whole.pt", **ON_THE_CPU))
    kill_at("update 9:", tmp_path, *VIT, **ON_THE_CPU)
    first, *lines = printed(tmp_path, *VIT, **ON_THE_CPU)
    assert first == "on cpu in fp32, from update 6 to 18 of 18"
    resumed = updates(lines)
    assert resumed == expected[-len(resumed) :]
    assert resumed[0].startswith("update 9: loss")


def test_two_ranks_are_gone_on_with_by_one(tmp_path):
    """Three updates by two ranks, in the middle of an epoch of four, then the rest."""
    by_two = printed(tmp_path, *ranks(2), "--steps", "3", **ON_THE_CPU)
    by_one = printed(tmp_path, *ranks(1), **ON_THE_CPU)
    assert [line.split(":")[0] for line in by_two + by_one] == ["update 3", "update 4", "update 8"]
    assert [line.rpartition(" ")[2] for line in by_two + by_one] == ["2", "1", "1"]


def assert_refused(home: Path, *command: str, words: list[str]) -> None:
    """The command exits with an error on stderr that has all ``words``, no traceback, and has written nothing."""
    environment = os.environ | ON_THE_CPU | {"PYTHONPATH": str(EXAMPLES.parent)}
    result = subprocess.run(
        [sys.executable, *command], cwd=home, env=environment, text=True, capture_output=True, check=False
    )
    assert result.returncode > 0
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr
    assert not list(home.iterdir())


@pytest.mark.parametrize("program", ["vit.py", "multi_gpu.py"])
def test_data_that_does_not_exist_is_refused(program, tmp_path):
    words = ["there is no folder typo", "fastload sample-data typo"]
    assert_refused(tmp_path, str(EXAMPLES / program), "--data", "typo", words=words)


def test_multi_gpu_without_torchrun_names_the_command(tmp_path):
    program = str(EXAMPLES / "multi_gpu.py")
    assert_refused(tmp_path, program, "--tiny", words=[f"torchrun --nproc-per-node 1 {program} --tiny"])


@pytest.mark.gpu
def test_vit_on_a_gpu(tmp_path):
    lines = printed(tmp_path, *VIT)
    assert lines[0].startswith("on cuda")
    assert updates(lines)[-1].startswith("update 18: average: loss")


@pytest.mark.gpu(2)
def test_two_gpus(tmp_path):
    lines = printed(tmp_path, *ranks(2))
    assert [line.split(":")[0] for line in lines] == ["update 4", "update 8"]
