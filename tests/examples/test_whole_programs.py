"""Each example runs at its tiny size: on a GPU by the command in its header."""

import os
import re
import subprocess
import sys

import pytest

from fastload.data import sample_data
from tests.examples.programs import EXAMPLES, Program, printed, printed_by_ranks

pytestmark = pytest.mark.long


def updates(lines: list[str]) -> list[str]:
    """What is told of updates, the speed left out."""
    return [re.sub(", [0-9,]+ img/s", "", line) for line in lines if line.startswith("update")]


def test_vit_goes_on_where_it_was_killed(tmp_path):
    """Its losses, and the accuracies of weights and average, are those of a run that was not killed."""
    expected = updates(printed(tmp_path, "vit.py", "--tiny", "--checkpoint", "whole.pt"))
    program = Program(tmp_path, "vit.py", "--tiny")
    assert any("update 9:" in line for line in program.lines)
    program.kill()
    first, *lines = printed(tmp_path, "vit.py", "--tiny")
    assert first == "on cpu in fp32, from update 6 to 18 of 18"
    resumed = updates(lines)
    assert resumed == expected[-len(resumed) :]
    assert resumed[0].startswith("update 9: loss")


@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 4), (4, 2)])
def test_ranks_are_gone_on_with_by_fewer_or_more(before, after, tmp_path):
    """Three updates, in the middle of an epoch of four, then the rest."""
    first = printed_by_ranks(before, tmp_path, "multi_gpu.py", "--tiny", "--steps", "3")
    rest = printed_by_ranks(after, tmp_path, "multi_gpu.py", "--tiny")
    assert not any("goes through all samples" in line for line in first + rest)
    first, rest = updates(first), updates(rest)
    assert [line.split(":")[0] for line in first + rest] == ["update 3", "update 4", "update 8"]
    assert [int(line.rpartition(" ")[2]) for line in first + rest] == [before, after, after]


def test_two_ranks_evaluate_each_image_once(tmp_path):
    pytest.importorskip("faster_coco_eval")
    lines = printed_by_ranks(2, tmp_path, "detection.py", "--tiny", "--held-out", "3")
    assert sum(line.startswith("epoch 0: images 3, bbox AP ") for line in lines) == 1


def test_a_folder_of_images_and_one_line(tmp_path):
    sample_data(tmp_path / "photographs", 40)
    options = ("--size", "32", "--epochs", "2", "--batch-size", "8", "--workers", "1")
    lines = printed(tmp_path, "folder.py", "photographs/train", *options)
    assert "RandomResizedCrop     device" in "\n".join(lines)
    assert [line.split(":")[0] for line in lines if line.startswith("epoch")] == ["epoch 1", "epoch 2"]
    assert any("-bound: the " in line for line in lines)


def assert_refused(home, name, *options, words):
    """It exits with an error that has all ``words``, no traceback, and has written nothing."""
    exit_code, lines = Program(home, name, *options).end()
    assert exit_code > 0
    told = "\n".join(lines)
    assert "Traceback" not in told
    for word in words:
        assert word in told
    assert not list(home.iterdir())


@pytest.mark.parametrize("program", ["vit.py", "multi_gpu.py"])
def test_data_that_does_not_exist_is_refused(program, tmp_path):
    words = ["there is no folder typo", "fastload sample-data typo"]
    assert_refused(tmp_path, program, "--data", "typo", words=words)


def test_multi_gpu_without_torchrun_names_the_command(tmp_path):
    command = f"torchrun --nproc-per-node 1 {EXAMPLES / 'multi_gpu.py'} --tiny"
    assert_refused(tmp_path, "multi_gpu.py", "--tiny", words=[command])


def typed(home, *command):
    """The lines printed by a command as a user types it behind ``python``."""
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *command]
    ended = subprocess.run(command, cwd=home, env=environment, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.gpu
def test_vit_on_a_gpu(tmp_path):
    lines = typed(tmp_path, str(EXAMPLES / "vit.py"), "--tiny")
    assert lines[0].startswith("on cuda")
    assert updates(lines)[-1].startswith("update 18: average: loss")


@pytest.mark.gpu(2)
def test_two_gpus(tmp_path):
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    lines = typed(tmp_path, *torchrun, str(EXAMPLES / "multi_gpu.py"), "--tiny")
    assert [line.split(":")[0] for line in lines] == ["update 4", "update 8"]
