"""What ``import fastload`` brings, and what it must not."""

import os
import runpy
import subprocess
import sys

import pytest

import fastload.environment
from fastload import kernels, transforms

OPTIONAL = [
    "accelerate",
    "albumentations",
    "kornia",
    "lightning",
    "matplotlib",
    "psutil",  # needed, where a loader has workers
    "rich",  # needed, where a report is shown
    "skimage",
    "tensordict",
    "timm",
    "torchmetrics",
    "torchvision",  # needed, but two seconds to import: where it is first used
]
CUDA_SETTINGS = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_SCALE_LAUNCH_QUEUES": "4x"}

# In a process of its own: what this one has imported, and set for CUDA, would be found there too.
LOOK = f"""
import logging, os, sys, threading, torch
before = threading.active_count(), list(logging.root.handlers)
import fastload.environment
print("optional packages:", [name for name in {OPTIONAL} if name in sys.modules])
print("threads and handlers kept:", before == (threading.active_count(), list(logging.root.handlers)))
print("CUDA context:", torch.cuda.is_initialized())
print("log handlers:", logging.getLogger("fastload").handlers)
print("CUDA_DEVICE_MAX_CONNECTIONS:", os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"))
"""


@pytest.mark.long
def test_importing_it_imports_no_optional_package_and_makes_no_context_thread_or_log_handler():
    environment = {name: value for name, value in os.environ.items() if name not in CUDA_SETTINGS}
    run = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.splitlines() == [
        "optional packages: []",
        "threads and handlers kept: True",
        "CUDA context: False",
        "log handlers: []",
        "CUDA_DEVICE_MAX_CONNECTIONS: 32",
    ]


@pytest.fixture
def environment_of(monkeypatch):
    """What CUDA would read in a new process that is given some variables and imports fastload."""

    def environment_of(machine, chosen):
        monkeypatch.setattr("platform.machine", lambda: machine)
        for name in CUDA_SETTINGS:
            monkeypatch.delenv(name, raising=False)
        for name, value in chosen.items():
            monkeypatch.setenv(name, value)
        runpy.run_path(fastload.environment.__file__)
        return {name: os.environ.get(name) for name in CUDA_SETTINGS}

    return environment_of


@pytest.mark.parametrize("chosen", [{}, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, {"CUDA_SCALE_LAUNCH_QUEUES": "1x"}])
def test_what_cuda_reads_once_is_set_unless_it_is(environment_of, chosen):
    assert environment_of("x86_64", chosen) == CUDA_SETTINGS | chosen


def test_launch_queues_are_left_alone_where_longer_ones_have_hung(environment_of):
    assert environment_of("aarch64", {}) == CUDA_SETTINGS | {"CUDA_SCALE_LAUNCH_QUEUES": None}


@pytest.mark.parametrize("module", [fastload, transforms, kernels])
def test_the_public_api_is_sorted_and_there(module):
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
