"""``describe_system``: what an issue or a result needs to know of a machine, for ``fastload env``."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fastload import __version__
from fastload.data.jpeg_library import library_decoder, torchvision_decode
from fastload.decode.engines import engines
from fastload.environment import cores
from fastload.interrupts import serving_cores

__all__ = ["describe_system"]

GIB = 1024**3
PACKAGES = (
    "torchvision", "triton", "numpy", "pillow", "torchcodec", "albumentations", "timm", "accelerate", "lightning",
    "transformers", "torchdata",
)  # fmt: skip
VARIABLES = ("FASTLOAD_", "CUDA_", "PYTORCH_", "OMP_NUM_THREADS", "NCCL_")  # beginnings of their names
NODES = Path("/sys/devices/system/node/online")
SHARED_MEMORY = Path("/dev/shm")

Facts = dict[str, str]


def describe_system() -> dict[str, Facts]:
    """What this machine has, in sections: each a name and its value, all strings.

    >>> sorted(describe_system())
    ['accelerators', 'decoders', 'environment', 'machine', 'versions']

    What cannot be found out has the reason as its value: a machine that is broken is to be described too.
    """
    return {
        "versions": _versions(),
        "machine": _asked(
            {
                "system": platform.platform,
                "processor": lambda: f"{platform.machine()}, {cores()} cores for this process of {os.cpu_count()}",
                "NUMA nodes": lambda: NODES.read_text().strip() if NODES.exists() else "not known",
                "memory": lambda: _gib(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
                "/dev/shm": _shared_memory,
                "workers start by": torch.multiprocessing.get_start_method,
            }
        ),
        "accelerators": _accelerators(),
        "decoders": _asked({"JPEG on the device": _device_decoder, "JPEG on the CPU": _cpu_decoder}),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)},
    }


def _asked(questions: dict[str, Callable[[], str]]) -> Facts:
    return {name: _answer(question) for name, question in questions.items()}


def _answer(question: Callable[[], str]) -> str:
    try:
        return question()
    except Exception as error:  # noqa: BLE001  (whatever is broken, the rest is described)
        return f"not known: {type(error).__name__}: {error}"


def _versions() -> Facts:
    others = {package: _version(package) for package in PACKAGES}
    own = {"fastload": __version__, "python": platform.python_version(), "torch": torch.__version__}
    return own | {package: number for package, number in others.items() if number}


def _version(package: str) -> str:
    """The version of an installed package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _accelerators() -> Facts:
    current = torch.accelerator.current_accelerator(check_available=True)
    if current is None:
        return {"none": "batches stay on the CPU"}
    if current.type != "cuda":
        return {current.type: f"{torch.accelerator.device_count()} devices"}
    facts = {f"cuda:{number}": _answer(partial(_gpu, number)) for number in range(torch.cuda.device_count())}
    return facts | {"interrupts": _answer(_interrupts), "CUDA": str(torch.version.cuda or torch.version.hip)}


def _gpu(number: int) -> str:
    properties = torch.cuda.get_device_properties(number)
    return (
        f"{properties.name}, {_gib(properties.total_memory)}, {properties.multi_processor_count} multiprocessors, "
        f"compute capability {properties.major}.{properties.minor}"
    )


def _interrupts() -> str:
    serving = ", ".join(map(str, sorted(serving_cores())))
    return f"served by core {serving}" if serving else "not known which cores serve them"


def _shared_memory() -> str:
    if not SHARED_MEMORY.exists():
        return "there is none"
    usage = shutil.disk_usage(SHARED_MEMORY)
    return f"{_gib(usage.free)} free of {_gib(usage.total)}"


def _device_decoder() -> str:
    if not torch.cuda.is_available():
        return "none: there is no CUDA device"
    found = engines(torch.device("cuda", torch.cuda.current_device()))
    return "none: no JPEG engines, or nvJPEG is not installed" if found is None else "nvJPEG's engines"


def _cpu_decoder() -> str:
    return "torchvision" if library_decoder() is torchvision_decode else "torchcodec"


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
