"""Sharpens or smooths each image by its own factor in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fastload.kernels.common import SMOOTHING_CENTRE, SMOOTHING_NEIGHBOUR
from fastload.kernels.parameters import upload_parameters
from fastload.kernels.triton.tile import launch, locate, offset, read, write

__all__ = ["sharpen"]


@triton.jit
def _sharpen_kernel(
    images,
    out,
    factors,
    shape,
    strides,
    out_strides,
    NEIGHBOUR: tl.constexpr,
    CENTRE: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    n, c, y, x, inside = locate(shape, GROUP, ROWS, COLUMNS)
    values = read(images, offset(strides, n, c, y, x), inside)
    away = 1 - tl.load(factors + n)
    if away != 0:
        inner = (y > 0) & (y < shape[2] - 1) & (x > 0) & (x < shape[3] - 1)
        smooth = values * CENTRE
        for i in tl.static_range(9):
            if i != 4:
                at = offset(strides, n, c, y + (i // 3 - 1), x + (i % 3 - 1))
                smooth += read(images, at, inner) * NEIGHBOUR
        values += tl.where(inner, away * (smooth - values), 0)
        values = tl.minimum(tl.maximum(values, 0.0), 1.0)
    write(out, offset(out_strides, n, c, y, x), values, inside)


def sharpen(images: torch.Tensor, factors: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """See :func:`fastload.kernels.sharpen`."""
    out = torch.empty_like(images, dtype=dtype)
    (factors,) = upload_parameters(images.device, factors)
    launch(_sharpen_kernel, images, out, factors, NEIGHBOUR=SMOOTHING_NEIGHBOUR, CENTRE=SMOOTHING_CENTRE)
    return out
