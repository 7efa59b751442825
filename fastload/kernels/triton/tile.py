"""Whole batches as kernels walk through them: tile by tile, values that lie together in memory side by side.

A tile is a number of rows by a number of columns of one image. A column is a pixel of one channel or, where channels
come last, a pixel and a channel: so neighbouring threads touch neighbouring memory in either layout.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["launch", "locate", "offset", "read", "write"]

ROWS, COLUMNS = 8, 128


@triton.jit
def locate(shape, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A program's image, the channels, rows and pixels of its tile, and which of them are inside of the image."""
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
    return n * strides[0] + c * strides[1] + y * strides[2] + x * strides[3]


@triton.jit
def read(images, at, inside):
    """Values as float32, from 0 to 1."""
    values = tl.load(images + at, inside, 0).to(tl.float32)
    if images.dtype.element_ty == tl.uint8:
        values *= 1 / 255
    return values


@triton.jit
def write(out, at, values, inside):
    if out.dtype.element_ty == tl.uint8:
        values = tl.floor(tl.minimum(tl.maximum(values * 255, 0.0), 255.0) + 0.5)
    tl.store(out + at, values.to(out.dtype.element_ty), inside)


def launch(kernel: Any, images: torch.Tensor, out: torch.Tensor, *parameters: Any, **constants: Any) -> None:
    """Run a kernel on every tile of ``out``: ``kernel(images, out, *parameters, shape, strides, out_strides, ...)``."""
    n, channels, height, width = out.shape
    group = channels if out.stride(1) == 1 else 1
    tiles = n * (channels // max(group, 1)) * triton.cdiv(height, ROWS) * triton.cdiv(width * group, COLUMNS)
    if tiles:
        geometry = tuple(out.shape), images.stride(), out.stride()
        kernel[(tiles,)](images, out, *parameters, *geometry, GROUP=group, ROWS=ROWS, COLUMNS=COLUMNS, **constants)
