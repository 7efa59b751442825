"""``describe``: when, on which machine and with which versions a suite was measured."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import torchvision

import fastload
from fastload.environment import cores

__all__ = ["describe", "device_slug"]


def describe(
    device: torch.device, packages: Mapping[str, str], missing: Sequence[str], settings: object
) -> dict[str, Any]:
    """Return the ``meta`` of a result file, before any case has been measured."""
    commit, dirty = _commit()
    return {
        "timestamp_utc": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "git_commit": commit,
        "git_dirty": dirty,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "driver": _driver() if device.type == "cuda" else "",
        "cpu_count": cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "fastload": fastload.__version__,
        "peers": dict(packages),
        "missing": list(missing),
        "settings": json.loads(json.dumps(settings)),  # tuples as lists, to compare equal to a file read back
        "wall_s": {},
    }


def device_slug(name: str) -> str:
    """Return a device's name in the form used in file names.

    >>> device_slug("NVIDIA H200")
    'nvidia-h200'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def _commit() -> tuple[str, bool]:
    """Return the commit of the package's sources, and whether they differ from it.

    On a machine that has the sources without their repository, FASTLOAD_COMMIT names the commit, with "-dirty" at
    the end if they differ.
    """
    if told := os.environ.get("FASTLOAD_COMMIT"):
        return told.removesuffix("-dirty"), told.endswith("-dirty")
    try:
        # An installed copy may lie in someone else's repository, whose commit says nothing about fastload.
        _git("ls-files", "--error-unmatch", "__init__.py")
        return _git("rev-parse", "HEAD"), bool(_git("status", "--porcelain", "."))
    except (OSError, subprocess.CalledProcessError):
        return "unknown", False


def _git(*arguments: str) -> str:
    return _output("git", "-C", str(Path(fastload.__file__).parent), *arguments)


def _driver() -> str:
    try:
        return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
