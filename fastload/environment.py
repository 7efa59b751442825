"""What fastload reads and sets of its surroundings when it is imported: CUDA's variables, and the processors."""

import os
import platform

import torch

__all__ = ["FEW_QUEUES", "MEASURES", "cores"]

# Whether loaders measure their batches. The benchmark of what measuring costs turns it off.
MEASURES = os.environ.get("FASTLOAD_CLOCK") != "off"

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
