"""Warps each image by its own affine matrix in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fastload.kernels.parameters import upload_parameters
from fastload.kernels.triton.tile import launch, locate, offset, read, write

__all__ = ["warp"]


@triton.jit
def _warp_kernel(
    images,
    out,
    matrices,
    fill,
    shape,
    strides,
    out_strides,
    BILINEAR: tl.constexpr,
    FILLED: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    n, c, y, x, inside = locate(shape, GROUP, ROWS, COLUMNS)
    height, width = shape[2], shape[3]
    middle_y, middle_x = (height - 1) * 0.5, (width - 1) * 0.5
    # This arithmetic is exact for the identity matrix, so the identity copies the image.
    source_x = _mapped(matrices + n * 6, x - middle_x, y - middle_y) + middle_x
    source_y = _mapped(matrices + n * 6 + 3, x - middle_x, y - middle_y) + middle_y
    nearest: tl.constexpr = 0.0 if BILINEAR else 0.5
    left, top = tl.floor(source_x + nearest), tl.floor(source_y + nearest)

    values = tl.zeros((ROWS, COLUMNS), tl.float32)
    cover = tl.zeros((ROWS, COLUMNS), tl.float32)
    for corner in tl.static_range(4 if BILINEAR else 1):
        near_x, near_y = left + corner % 2, top + corner // 2
        weight = (near_x >= 0) & (near_x < width) & (near_y >= 0) & (near_y < height)
        from_image = inside & weight
        weight = weight.to(tl.float32)
        if BILINEAR:
            weight *= (1 - tl.abs(source_x - near_x)) * (1 - tl.abs(source_y - near_y))
        at = offset(strides, n, c, near_y.to(tl.int32), near_x.to(tl.int32))
        values += weight * read(images, at, from_image)
        cover += weight
    if FILLED:
        # As in torchvision: the samples, already blended with 0 at the border, are multiplied by the coverage again.
        values = values * cover + fill * (1 - cover)
    write(out, offset(out_strides, n, c, y, x), values, inside)


@triton.jit
def _mapped(row, x, y):
    return tl.load(row) * x + tl.load(row + 1) * y + tl.load(row + 2)


def warp(
    images: torch.Tensor,
    matrices: torch.Tensor,
    *,
    interpolation: str = "nearest",
    fill: float | None = 0.0,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """See :func:`fastload.kernels.warp`."""
    out = torch.empty_like(images, dtype=dtype)
    (matrices,) = upload_parameters(images.device, matrices)
    constants = {"BILINEAR": interpolation == "bilinear", "FILLED": fill is not None}
    launch(_warp_kernel, images, out, matrices, fill or 0.0, **constants)
    return out
