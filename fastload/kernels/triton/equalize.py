"""Equalizes histograms of chosen images: one launch computes each channel's lookup table, a second applies it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fastload.kernels.parameters import upload_parameters
from fastload.kernels.triton.tile import launch, locate, offset, read, write

__all__ = ["equalize"]

BLOCK = 2048  # pixels read in each step
WARPS = 8


@triton.jit
def _tables_kernel(images, tables, chosen, shape, strides, OF_BYTES: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the lookup table of one channel of one image. One program reads all of it, so no atomics are needed."""
    plane = tl.program_id(0)
    channels, height, width = shape[1], shape[2], shape[3]
    n = (plane // channels).to(tl.int64)
    if tl.load(chosen + n):
        level = tl.arange(0, 256)
        histogram = tl.zeros((256,), tl.int32)
        for start in range(0, height * width, BLOCK):
            pixel = start + tl.arange(0, BLOCK)
            inside = pixel < height * width
            y = pixel // width
            at = offset(strides, n, plane % channels, y, pixel - y * width)
            histogram += tl.histogram(_levels(images, at, inside, OF_BYTES), 256, mask=inside)
        tl.store(tables + plane * 256 + level, _table(histogram, height * width).to(tl.uint8))


@triton.jit
def _table(histogram, pixels):
    """The lookup table of Pillow's ``ImageOps.equalize``: a level becomes the number of darker pixels / ``share``.

    ``share`` is the number of pixels that each level of a flat histogram has. With ``share`` 0 levels stay as they are.
    """
    level = tl.arange(0, 256)
    brightest = tl.max(tl.where(histogram > 0, level, 0), 0)
    share = (pixels - tl.sum(tl.where(level == brightest, histogram, 0), 0)) // 255
    darker = tl.cumsum(histogram, 0) - histogram
    table = (darker + share // 2) // tl.maximum(share, 1)
    return tl.where(share == 0, level, tl.minimum(table, 255))


@triton.jit
def _levels(images, at, inside, OF_BYTES: tl.constexpr):
    """Load levels, 0 to 255. Floats are rounded to bytes, or quantised to bins of equal width, as by ``to_dtype``."""
    if images.dtype.element_ty == tl.uint8:
        return tl.load(images + at, inside, 0).to(tl.int32)
    values = tl.load(images + at, inside, 0).to(tl.float32)
    levels = (values * 255 + 0.5 if OF_BYTES else values * 255.999).to(tl.int32)
    return tl.minimum(tl.maximum(levels, 0), 255)


@triton.jit
def _apply_kernel(
    images,
    out,
    tables,
    chosen,
    shape,
    strides,
    out_strides,
    OF_BYTES: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    n, c, y, x, inside = locate(shape, GROUP, ROWS, COLUMNS)
    at = offset(strides, n, c, y, x)
    to = offset(out_strides, n, c, y, x)
    if tl.load(chosen + n):
        table = (n * shape[1] + c) * 256
        write(out, to, read(tables, table + _levels(images, at, inside, OF_BYTES), inside), inside)
    else:
        write(out, to, read(images, at, inside), inside)


def equalize(
    images: torch.Tensor, chosen: torch.Tensor, *, dtype: torch.dtype = torch.float32, of_bytes: bool = False
) -> torch.Tensor:
    """See :func:`fastload.kernels.equalize`."""
    out = torch.empty_like(images, dtype=dtype)
    if out.numel() == 0:
        return out
    n, channels = images.shape[:2]
    (chosen,) = upload_parameters(images.device, chosen)
    tables = torch.empty(n, channels, 256, dtype=torch.uint8, device=images.device)
    _tables_kernel[(n * channels,)](
        images, tables, chosen, tuple(images.shape), images.stride(), of_bytes, BLOCK=BLOCK, num_warps=WARPS
    )
    launch(_apply_kernel, images, out, tables, chosen, OF_BYTES=of_bytes)
    return out
