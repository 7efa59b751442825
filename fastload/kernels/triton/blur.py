"""Gaussian blur with each image's own sigma: one launch blurs along rows, a second along columns.

Two launches read 2 K values for each pixel, where K is the kernel size. A single launch would read K squared, or
recompute row sums in every tile that needs them. It would save the intermediate image, but that is only written and
read for blurred images: the first launch copies the others.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from fastload.kernels.common import gaussian_weights
from fastload.kernels.parameters import upload_parameters
from fastload.kernels.triton.tile import launch, locate, offset, read, write

__all__ = ["blur"]

NEGLIGIBLE = 1e-8  # weights below this do not change a sum of 1 in float32


@triton.jit
def _rows_kernel(
    images,
    out,
    blurred,  # float32, blurred along rows; strides of ``out``
    weights,  # each image's weights, (N, KERNEL_SIZE)
    reaches,  # taps on either side of the centre; 0 to copy
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
    centre = weights + n * KERNEL_SIZE + KERNEL_SIZE // 2
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(-reach, reach + 1):
        at = offset(strides, n, c, y, _reflect(x + step, shape[3]))
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
    weights,
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
        centre = weights + n * KERNEL_SIZE + KERNEL_SIZE // 2
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for step in range(-reach, reach + 1):
            at = offset(strides, n, c, _reflect(y + step, shape[2]), x)
            total += tl.load(centre + step) * read(blurred, at, inside)
        write(out, offset(out_strides, n, c, y, x), total, inside)


@triton.jit
def _reflect(index, length):
    """Reflect an index at both ends of a line; where that leaves the line, its first pixel."""
    index = tl.abs(index)
    return tl.maximum(tl.minimum(index, 2 * (length - 1) - index), 0)


def blur(
    images: torch.Tensor, sigmas: torch.Tensor, kernel_size: int, *, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """See :func:`fastload.kernels.blur`."""
    out = torch.empty_like(images, dtype=dtype)
    blurred = torch.empty_like(out, dtype=torch.float32)
    kernels = gaussian_weights(sigmas, kernel_size)
    reaches = torch.from_numpy((kernels.numpy() > NEGLIGIBLE).sum(1, dtype=np.int32) // 2)
    kernels, reaches = upload_parameters(images.device, kernels, reaches)
    launch(_rows_kernel, images, out, blurred, kernels, reaches, KERNEL_SIZE=kernel_size)
    launch(_columns_kernel, blurred, out, kernels, reaches, KERNEL_SIZE=kernel_size)
    return out
