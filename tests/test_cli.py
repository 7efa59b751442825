"""The command line: what it prints, a user's mistakes (one line, exit code 2), and Ctrl-C, which ends all of it."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

import fastload
from fastload import system
from fastload.cli import app
from fastload.data import sample_data


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    return sample_data(tmp_path_factory.mktemp("data") / "photographs", 40)


def fastload_command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_refused(result, *words):
    """One line on stderr with all ``words`` in it, exit code 2."""
    assert result.exit_code == 2, result.output
    assert result.stdout.strip() == ""
    line, nothing = result.stderr.split("\n")
    assert line.startswith("fastload: ")
    assert nothing == ""
    for word in words:
        assert str(word) in line


def test_version():
    assert fastload_command("--version").stdout == f"fastload {fastload.__version__}\n"


def test_help_names_every_command():
    screen = fastload_command("--help").stdout
    for command in ("demo", "sample-data", "bench", "doctor", "env"):
        assert command in screen


def test_env_says_what_an_issue_needs(monkeypatch):
    monkeypatch.setenv("FASTLOAD_EXAMPLE", "told")
    told = fastload_command("env").stdout
    for fact in (fastload.__version__, torch.__version__, "cores for this process", "JPEG on the CPU", "told"):
        assert fact in told
    sections = json.loads(fastload_command("env", "--json").stdout)
    assert sections["versions"]["torch"] == torch.__version__
    assert all(isinstance(value, str) for facts in sections.values() for value in facts.values())


def test_env_describes_a_broken_machine_too(monkeypatch):
    monkeypatch.setattr(system, "SHARED_MEMORY", 7)
    assert "not known: AttributeError" in fastload_command("env").stdout


@pytest.mark.long
def test_demo_on_the_users_own_photographs(photographs):
    result = fastload_command("demo", "--device", "cpu", "--data", photographs, "--epochs", 1, "--workers", 1)
    assert result.exit_code == 0, result.output
    assert "held-out" in result.stdout


def test_sample_data_writes_so_many_images(tmp_path):
    result = fastload_command("sample-data", tmp_path / "photographs", "--images", 30, "--seed", 1)
    assert result.exit_code == 0, result.output
    assert len(list(tmp_path.rglob("*.jpg"))) == 30


def test_sample_data_refuses_a_folder_in_use(tmp_path):
    (tmp_path / "precious.txt").touch()
    assert_refused(fastload_command("sample-data", tmp_path), tmp_path, "not an empty folder")


def test_sample_data_refuses_too_few_images(tmp_path):
    assert_refused(fastload_command("sample-data", tmp_path, "--images", 3), "from 20 to 100,000; got 3")


def test_sample_data_names_the_missing_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    assert_refused(fastload_command("sample-data", tmp_path / "new"), "pip install scikit-image pooch")


def test_demo_refuses_a_missing_folder(tmp_path):
    assert_refused(fastload_command("demo", "--data", tmp_path / "nowhere"), "no folder", tmp_path / "nowhere")


def test_demo_refuses_a_file_for_a_folder(photographs):
    file = next(photographs.rglob("*.jpg"))
    assert_refused(fastload_command("demo", "--data", file), "no folder", file)


def test_demo_refuses_an_empty_folder(tmp_path):
    assert_refused(fastload_command("demo", "--data", tmp_path), tmp_path)


def test_demo_refuses_a_class_without_images(tmp_path):
    (tmp_path / "cat").mkdir()
    assert_refused(fastload_command("demo", "--data", tmp_path), "cat")


def test_demo_refuses_a_file_that_is_no_image(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.jpg").write_text("this is not a photograph")
    assert_refused(fastload_command("demo", "--data", tmp_path), tmp_path, ".jpg", "not an image")


def test_demo_refuses_an_unknown_model_and_proposes_one():
    assert_refused(fastload_command("demo", "--model", "resnet81"), "'resnet81'", "resnet18")


@pytest.mark.parametrize("model", ["googlenet", "inception_v3"])
def test_demo_refuses_models_with_auxiliary_outputs(model):
    assert_refused(fastload_command("demo", "--model", model), repr(model))


@pytest.mark.parametrize("device", ["abacus", "cuda:99", ""])
def test_demo_refuses_an_unknown_device(device):
    assert_refused(fastload_command("demo", "--device", device), repr(device), "cpu")


INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background passes on that it is ignored
from fastload.cli import main
main()
"""


def start(*arguments):
    """Run the command as a terminal does, with a progress bar, in a process group that Ctrl-C goes to."""
    return subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *(str(argument) for argument in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "FORCE_COLOR": "1"},
        start_new_session=True,
    )


def press_ctrl_c(command):
    os.killpg(command.pid, signal.SIGINT)
    _, errors = command.communicate(timeout=60)
    assert errors == b"fastload: interrupted\n"
    assert command.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.killpg(command.pid, 0)


def read_until(pattern, stream):
    screen = b""
    while not re.search(pattern, screen):
        read = os.read(stream.fileno(), 65536)
        assert read, screen.decode()
        screen += read


has_process_groups = pytest.mark.skipif(os.name == "nt", reason="Windows has no process groups to send Ctrl-C to")


@pytest.mark.long
@has_process_groups
@pytest.mark.parametrize("loop", [b"plain loop", b"PrefetchLoader"])
def test_ctrl_c_leaves_no_process_of_the_demo(loop, photographs):
    options = ("--device", "cpu", "--workers", 2, "--epochs", 20, "--batch-size", 16)
    command = start("demo", "--data", photographs, *options)
    read_until(loop + rb".* [1-9]\d*/", command.stdout)
    press_ctrl_c(command)


@pytest.mark.long
@has_process_groups
def test_ctrl_c_leaves_no_half_of_the_sample_data(tmp_path):
    command = start("sample-data", tmp_path / "photographs", "--images", 100_000)
    while not list(tmp_path.rglob("*.jpg")):
        time.sleep(0.1)
    press_ctrl_c(command)
    assert list(tmp_path.rglob("*")) == [tmp_path / "photographs"]
