"""What ``import fastload`` brings, and what it must not."""

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
]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


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


@pytest.mark.parametrize("module", [fastload, transforms, kernels])
def test_the_public_api_is_sorted_and_there(module):
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
