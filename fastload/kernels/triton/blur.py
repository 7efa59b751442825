"""Gaussian blur, each image by its own sigma: along the rows in one launch, along the columns in a second.

Two launches read 2 K values a pixel. One would read K squared, or each row again for every tile that its blur reaches,
and save the rows' sums, which only blurred images have: the first launch finishes the others.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fastload.kernels.common import gaussian_weights
from fastload.kernels.triton.tile import launch, locate, offset, read, write
from fastload.kernels.upload import upload

__all__ = ["blur"]

NEGLIGIBLE = 1e-8  # a weight that leaves a sum of weights 1 as it is in float32


@triton.jit
def _rows_kernel(
    images,
    out,
    blurred,  # along the rows; laid out as `out`
    centres,  # where the middle of each image's kernel lies
    reaches,
    shape,
    strides,
    out_strides,
    KERNEL_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    n, c, y, x, inside = locate(shape, GROUP, ROWS, COLUMNS)
    reach = tl.load(reaches + n)
    centre = centres + n * KERNEL_SIZE + KERNEL_SIZE // 2
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(-reach, reach + 1):
        at = offset(strides, n, c, y, _mirrored(x + step, shape[3]))
        total += tl.load(centre + step) * read(images, at, inside)
    at = offset(out_strides, n, c, y, x)
    if reach > 0:
        write(blurred, at, total, inside)
    else:
        write(out, at, total, inside)


@triton.jit
def _columns_kernel(
    blurred,
    out,
    centres,
    reaches,
    shape,
    strides,
    out_strides,
    KERNEL_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    n, c, y, x, inside = locate(shape, GROUP, ROWS, COLUMNS)
    reach = tl.load(reaches + n)
    if reach > 0:
        centre = centres + n * KERNEL_SIZE + KERNEL_SIZE // 2
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for step in range(-reach, reach + 1):
            at = offset(strides, n, c, _mirrored(y + step, shape[2]), x)
            total += tl.load(centre + step) * read(blurred, at, inside)
        write(out, offset(out_strides, n, c, y, x), total, inside)


@triton.jit
def _mirrored(place, length):
    """Mirrored at both ends of a line; further out than the line is long, its first pixel."""
    place = tl.abs(place)
    return tl.maximum(tl.minimum(place, 2 * (length - 1) - place), 0)


def blur(
    images: torch.Tensor, sigmas: torch.Tensor, kernel_size: int, *, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """See :func:`fastload.kernels.blur`."""
    out = torch.empty_like(images, dtype=dtype)
    blurred = torch.empty_like(out, dtype=torch.float32)
    kernels = gaussian_weights(sigmas, kernel_size)
    reaches = (kernels > NEGLIGIBLE).sum(1, dtype=torch.int32) // 2
    kernels, reaches = upload(images.device, kernels, reaches)
    launch(_rows_kernel, images, out, blurred, kernels, reaches, KERNEL_SIZE=kernel_size)
    launch(_columns_kernel, blurred, out, kernels, reaches, KERNEL_SIZE=kernel_size)
    return out
