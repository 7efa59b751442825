"""What fastload reads and sets of its surroundings: CUDA's variables, the processors, the fastest dtype of a device."""

import os
import platform

import torch

__all__ = ["FEW_QUEUES", "MEASURES", "MOVES", "cores", "fastest_float", "float_on"]

OFF = ("off", "0", "false", "no")


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() not in OFF


# Whether loaders measure their batches. The benchmark of what measuring costs turns it off.
MEASURES = _is_on("FASTLOAD_CLOCK")

# Whether threads move off the cores that serve the GPUs' interrupts.
MOVES = _is_on("FASTLOAD_AFFINITY")

# CUDA reads both variables once, when it is initialised. A value set by the user is kept.

# CUDA maps its streams to this many hardware queues, 8 by default, and streams that share a queue wait for each other.
# The JPEG engines use a dozen streams: with 8 queues some share the training's, and decoding waits for its kernels.
FEW_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS" not in os.environ and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

# With launch queues four times as long, the host gets further ahead of the device, so that a stall of the host costs
# nothing. Not on ARM: Jetsons have hung with it (ggml-org/llama.cpp#19219).
if platform.machine() != "aarch64":
    os.environ.setdefault("CUDA_SCALE_LAUNCH_QUEUES", "4x")


def cores() -> int:
    """How many processors this process may use, which may be fewer than the machine has.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fastest_float(device: torch.device) -> torch.dtype:
    """The dtype that models compute in fastest: bfloat16 if native, float16 on other accelerators, float32 on the CPU.

    >>> fastest_float(torch.device("cpu"))
    torch.float32
    """
    if device.type == "cpu":
        return torch.float32
    bf16_supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    # Without the argument, emulated bf16, which is slower than fp32, counts as supported.
    return torch.bfloat16 if bf16_supported and bf16_supported(including_emulation=False) else torch.float16


def float_on(device: torch.device, dtype: torch.dtype | str | None) -> torch.dtype | None:
    """``dtype``, of which ``"auto"`` is the one that models compute in fastest on the device.

    Raises:
        ValueError: ``dtype`` is another string.
    """
    if not isinstance(dtype, str):
        return dtype
    if dtype != "auto":
        raise ValueError(f"dtype must be torch.float32, torch.bfloat16, torch.float16 or 'auto'; got {dtype!r}")
    return fastest_float(device)
