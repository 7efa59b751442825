"""What ``import fastload`` brings, and what it must not."""

import os
import subprocess
import sys

import pytest

import fastload
from fastload import kernels, transforms

OPTIONAL = [
    "accelerate",
    "albumentations",
    "kornia",
    "lightning",
    "matplotlib",
    "skimage",
    "tensordict",
    "timm",
    "torchmetrics",
    "torchvision",  # needed, but two seconds to import: where it is first used
]


CUDA_SETTINGS = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "CUDA_SCALE_LAUNCH_QUEUES": "4x"}
SETTINGS_ON = (
    "import os, platform\n"
    "import torch\n"
    "platform.machine = lambda: '{}'\n"
    "import fastload\n"
    f"print(*(os.environ.get(name) for name in {list(CUDA_SETTINGS)}))"
)


def run(code: str, **environment: str) -> str:
    # Those that this process's own fastload has set are left out.
    kept = {name: value for name, value in os.environ.items() if name not in CUDA_SETTINGS}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=kept | environment).stdout.strip()


def test_no_optional_package_is_imported():
    loaded = run(f"import sys, fastload; print([name for name in {OPTIONAL} if name in sys.modules])")
    assert loaded == "[]"


def test_no_context_thread_or_log_handler_is_made():
    code = (
        "import logging, threading, torch\n"
        "before = threading.active_count(), list(logging.root.handlers)\n"
        "import fastload\n"
        "after = threading.active_count(), list(logging.root.handlers)\n"
        "print(before == after, torch.cuda.is_initialized(), logging.getLogger('fastload').handlers)"
    )
    assert run(code) == "True False []"


@pytest.mark.parametrize("chosen", [{}, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, {"CUDA_SCALE_LAUNCH_QUEUES": "1x"}])
def test_what_cuda_reads_once_is_set_unless_it_is(chosen):
    assert run(SETTINGS_ON.format("x86_64"), **chosen).split() == list((CUDA_SETTINGS | chosen).values())


def test_launch_queues_are_left_alone_where_longer_ones_have_hung():
    assert run(SETTINGS_ON.format("aarch64")).split() == ["32", "None"]


@pytest.mark.parametrize("module", [fastload, transforms, kernels])
def test_the_public_api_is_sorted_and_there(module):
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
