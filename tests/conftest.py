"""What all tests share: a GPU or a reason to skip, and the proof that nothing outlives a test."""

import gc
import multiprocessing
import os
import subprocess
import threading
from pathlib import Path

# Test processes side by side share the cores; PyTorch reads this when it is imported, in their subprocesses too.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))

# Where there is no GPU, kernels run in Triton's interpreter; Triton reads this when it is imported.
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Read when the first cuBLAS handle is made; deterministic algorithms need it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pytest
from hypothesis import HealthCheck, settings

import fastload  # noqa: F401  (whole, before the doctests of one module make a second of it)
from tests import interpreted

if not torch.cuda.is_available():
    interpreted.patch_once()

# FASTLOAD_GC=off: as large trainings run, without the cycle collector.
COLLECTS = os.environ.get("FASTLOAD_GC") != "off"

# No test fails for being slow: neighbours slow it.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads it
def pytest_configure(config):
    """Each commit tries other examples, and the same ones each time."""
    if config.getoption("hypothesis_seed") is None:
        config.option.hypothesis_seed = str(seed_of_commit())


def seed_of_commit():
    """From the first digits of its name; 0 outside of a repository."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    answer = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return int(answer.stdout[:8] or "0", 16)


def pytest_report_header(config):
    return f"examples: --hypothesis-seed={config.getoption('hypothesis_seed')}"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(items):
    gpus = torch.cuda.device_count()
    for item in items:
        if gpu := item.get_closest_marker("gpu"):
            needed = gpu.args[0] if gpu.args else 1
            reason = f"needs {needed} CUDA GPU{'s' * (needed > 1)}, and there is {gpus or 'none'}"
            item.add_marker(pytest.mark.skipif(gpus < needed, reason=reason))
            item.add_marker(pytest.mark.xdist_group("gpu"))  # held up and measured: nobody else's while a test has it
        if gpus and item.get_closest_marker("interpreter"):
            item.add_marker(pytest.mark.skip(reason="kernels are compiled here, not interpreted"))


def pytest_unconfigure():
    gc.unfreeze()  # what was frozen is to be taken apart in its order; modules in C complain otherwise


@pytest.fixture
def one_thread():
    """PyTorch computes on one thread: several add up in another order, and are slow where others use the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """G6: no thread or process of a test outlives it."""
    if not COLLECTS:
        gc.disable()
    gc.freeze()  # half a million objects of imported modules, which no collection needs to go through again
    threads = set(threading.enumerate())
    children = set(multiprocessing.active_children())
    yield
    left = [thread for thread in threading.enumerate() if thread not in threads and thread.name.startswith("fastload")]
    workers = set(multiprocessing.active_children()) - children
    if left or workers:
        gc.collect()  # takes a quarter of a second, so only where something may be kept by a cycle
    for thread in left:
        thread.join(timeout=10)
    assert not [thread for thread in left if thread.is_alive()]
    for worker in workers:
        worker.join(timeout=10)
    assert not [worker for worker in workers if worker.is_alive()]


@pytest.fixture
def repeatable():
    """The same weights, batches and convolutions' algorithms each time."""
    torch.manual_seed(0)
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        yield


@pytest.fixture
def late(monkeypatch):
    """A training step's host learns of an update when it has to, as on a GPU, on the CPU too."""
    from fastload.training import update_result as outcome  # noqa: PLC0415
    from tests.handwritten import LateReadout  # noqa: PLC0415

    monkeypatch.setattr(outcome, "AsyncReadback", LateReadout)
