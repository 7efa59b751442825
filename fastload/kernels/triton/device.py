"""Device properties that kernel launches depend on, and programmatic dependent launch."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["is_nvidia", "multiprocessors", "pdl_options", "wait_for_previous_kernel"]


@cache
def is_nvidia(device: torch.device) -> bool:
    """Whether inline PTX runs on the device."""
    return device.type == "cuda" and torch.version.cuda is not None


@cache
def pdl_options(device: torch.device) -> dict[str, Any]:
    """Launch options for programmatic dependent launch, of a kernel that calls :func:`wait_for_previous_kernel`.

    From Hopper on, the kernel's programs become resident while the last programs of the previous kernel still run.
    """
    if is_nvidia(device) and torch.cuda.get_device_capability(device) >= (9, 0):
        return {"OVERLAPS": True, "launch_pdl": True}
    return {"OVERLAPS": False}


@triton.jit
def wait_for_previous_kernel(OVERLAPS: tl.constexpr):
    """Wait until the previous kernel's writes are visible, and let the next kernel launch its programs early.

    Call it before the first load or store.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@cache
def multiprocessors(device: torch.device) -> int:
    """The device's number of streaming multiprocessors."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
