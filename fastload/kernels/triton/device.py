"""What a kernel launch asks about its device."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["is_nvidia", "multiprocessors", "overlap_options", "wait_for_kernel_before"]


@cache
def is_nvidia(device: torch.device) -> bool:
    """Whether PTX runs on it."""
    return device.type == "cuda" and torch.version.cuda is not None


@cache
def overlap_options(device: torch.device) -> dict[str, Any]:
    """How a kernel that calls :func:`wait_for_kernel_before` is launched: with its argument ``OVERLAPS``.

    From Hopper on, its programs take their places while the last ones of the kernel before it still run.
    """
    if is_nvidia(device) and torch.cuda.get_device_capability(device) >= (9, 0):
        return {"OVERLAPS": True, "launch_pdl": True}
    return {"OVERLAPS": False}


@triton.jit
def wait_for_kernel_before(OVERLAPS: tl.constexpr):
    """Before anything is read or written; and the kernel behind this one may take places, and wait for this one."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@cache
def multiprocessors(device: torch.device) -> int:
    """The number of its streaming multiprocessors."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
