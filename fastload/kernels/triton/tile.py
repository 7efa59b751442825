"""Tiling of dense batches, for ``blur``, ``equalize``, ``sharpen`` and ``warp``.

A program computes a tile: ``ROWS`` rows by ``COLUMNS`` columns of one image. With contiguous memory a column is a pixel
of one channel; with channels last it is one channel of a pixel. So neighbouring threads access neighbouring memory in
either layout.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fastload.kernels.triton.epilogue import rounded

__all__ = ["launch", "locate", "offset", "read", "write"]

ROWS, COLUMNS = 8, 128


@triton.jit
def locate(shape, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The program's tile: index of its image, its channels, rows and columns, and the mask of those inside the image.

    ``GROUP`` is 1 if the output is contiguous; the number of channels if they come last.
    """
    channels, height, width = shape[1], shape[2], shape[3]
    tiles_x = tl.cdiv(width * GROUP, COLUMNS)
    tiles_y = tl.cdiv(height, ROWS)
    tile = tl.program_id(0)
    column = tile % tiles_x * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    y = tile // tiles_x % tiles_y * ROWS + tl.arange(0, ROWS)[:, None]
    plane = tile // tiles_x // tiles_y
    planes = channels // GROUP
    x = column // GROUP
    c = plane % planes + column - x * GROUP
    return (plane // planes).to(tl.int64), c, y, x, (y < height) & (x < width)


@triton.jit
def offset(strides, n, c, y, x):
    """Offset in elements of channel ``c`` at row ``y``, column ``x`` of image ``n``."""
    return n * strides[0] + c * strides[1] + y * strides[2] + x * strides[3]


@triton.jit
def read(images, at, inside):
    """Load values as float32 from 0 to 1."""
    values = tl.load(images + at, inside, 0).to(tl.float32)
    if images.dtype.element_ty == tl.uint8:
        values *= 1 / 255
    return values


@triton.jit
def write(out, at, values, inside):
    """Store values from 0 to 1 in the output's dtype."""
    tl.store(out + at, rounded(values, out.dtype.element_ty), inside)


def launch(kernel: Any, images: torch.Tensor, out: torch.Tensor, *parameters: Any, **constants: Any) -> None:
    """Launch a program for each tile of ``out``.

    The kernel's arguments are ``images, out, *parameters, shape, strides, out_strides``, then constants.
    """
    n, channels, height, width = out.shape
    group = channels if out.stride(1) == 1 else 1
    tiles = n * (channels // max(group, 1)) * triton.cdiv(height, ROWS) * triton.cdiv(width * group, COLUMNS)
    if tiles:
        geometry = tuple(out.shape), images.stride(), out.stride()
        kernel[(tiles,)](images, out, *parameters, *geometry, GROUP=group, ROWS=ROWS, COLUMNS=COLUMNS, **constants)
