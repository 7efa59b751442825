"""Crop, resize, flip and finish images of different sizes in one launch: of any dtype, whichever way channels lie.

Resampling is linear and separable: a tile of the output is ``Wy @ source @ Wx``, where Wy and Wx hold the filter's
weights and are zero but for a band. A program makes one tile of all channels. It walks the part of the source which the
bands cover, block by block, makes the block's weights from the filter's formula, and multiplies on tensor cores. So a
source pixel is read once a tile, however many outputs it reaches; flips, offsets and "nearest" are just other weights.

float16 holds a byte exactly, but rounds weights. So each sum is divided by that of its rounded weights; and 128 is
taken off each byte, which halves the rounding between the products. Floats are multiplied in three terms of tf32.

Interleaved channels are not taken apart: the first product mixes rows and does not care what lies in them, and the
second has weights for each channel that are zero where the other channels are.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fastload.kernels.triton.device import is_nvidia, wait_for_kernel_before
from fastload.kernels.triton.epilogue import add_statistics, apply_epilogue
from fastload.kernels.triton.filters import axis_filter, distance_scale, filter_weights, tile_of_program
from fastload.kernels.triton.store import TYPES, store
from fastload.kernels.triton.table import (
    ADDRESS,
    CHANNEL,
    COLUMNS,
    HEIGHT,
    OUTPUT,
    PIXEL,
    ROW,
    WIDTH,
    Table,
    entry,
)
from fastload.structure.ragged import Ragged

__all__ = ["TILE", "constants", "resample_kernel"]

# A tile of the output, and a block of the source: rows and columns, powers of two from 16.
TILE = (64, 32)
BLOCK = (64, 64)
LAUNCH = {"num_warps": 4, "num_stages": 1}

WORD = 16  # bytes that a thread reads at once

TAPS = tl.constexpr(8)  # that are summed at a time


@triton.jit
def resample_kernel(
    table,  # int64, COLUMNS an image
    first_image,
    fill,
    program,
    previous,
    affine,
    erase,
    seeds,
    statistics,
    RANGES: tl.constexpr,
    SOURCE: tl.constexpr,  # dtype of sources
    DOT: tl.constexpr,  # dtype in which they are multiplied
    C: tl.constexpr,
    FILTER: tl.constexpr,
    PADDED: tl.constexpr,  # something outside of a source is seen
    LAYOUT: tl.constexpr,  # of channels in a source: planar, packed (interleaved) or strided
    ALIGNED: tl.constexpr,  # elements that all rows of sources begin at multiples of
    TARGET: tl.constexpr,  # this and the next four are what ``store`` takes
    TARGET_ALIGNED: tl.constexpr,
    TARGET_PLANAR: tl.constexpr,
    GROUP: tl.constexpr,
    PAIRS: tl.constexpr,
    NVIDIA: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
    BH: tl.constexpr,
    BW: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_kernel_before(OVERLAPS)
    n, first_y, first_x = tile_of_program(first_image, TH, TW)
    row = table + n.to(tl.int64) * COLUMNS
    height, width = entry(row, OUTPUT + HEIGHT), entry(row, OUTPUT + WIDTH)
    y, x = first_y + tl.arange(0, TH), first_x + tl.arange(0, TW)
    inside = (y < height)[:, None] & (x < width)[None, :]

    vertical = axis_filter(row, 0, y, first_y, height, TH, FILTER)
    horizontal = axis_filter(row, 1, x, first_x, width, TW, FILTER)
    values = _products(
        row, vertical, horizontal, fill, SOURCE, DOT, C, FILTER, PADDED, LAYOUT, ALIGNED, NVIDIA, TH, TW, BH, BW
    )
    last_y = tl.minimum(first_y + TH, height) - 1
    values = apply_epilogue(
        values, n, height * width, y[:, None], x[None, :], first_y, last_y, program, previous, affine, erase, seeds
    )
    if statistics is not None:
        whole = (first_y + TH <= height) & (first_x + TW <= width)
        add_statistics(values, inside, whole, n, statistics, RANGES)
    store(row, values, first_y, first_x, height, width, TARGET, TARGET_ALIGNED, TARGET_PLANAR, GROUP, PAIRS)


@triton.jit
def _shares(extent, band, FILTER: tl.constexpr, DOT: tl.constexpr):
    """One over the sum of each output's weights; and the share of that sum which lies in the image, not in ``fill``."""
    _, _, _, from_tap, to_tap = extent
    centre, inverse, support, length, present = band
    begin = (centre - support + 0.5).to(tl.int32)
    total, seen = tl.zeros(centre.shape, tl.float32), tl.zeros(centre.shape, tl.float32)
    for step in range(0, (2 * support).to(tl.int32) + 2, TAPS):
        tap = (begin + step)[:, None] + tl.arange(0, TAPS)[None, :]
        distance = (tap - centre[:, None] + 0.5) * distance_scale(inverse, FILTER)
        weight = filter_weights(distance, (tap >= 0) & (tap < length), inverse, FILTER).to(DOT).to(tl.float32)
        total += tl.sum(weight, 1)
        seen += tl.sum(tl.where((tap >= from_tap) & (tap < to_tap), weight, 0.0), 1)
    share = tl.where(present, 1 / tl.where(total == 0, 1.0, total), 0.0)
    return share, seen * share


@triton.jit
def _band(tap, first, centre, inverse, from_tap, to_tap, FILTER: tl.constexpr):
    """The weights that outputs, rows, give to taps, columns, ``first`` and beyond: 0 but for a band.

    Taps are columns since a thread has few of those, which are all that it need compare with the image's bounds. Two
    vectors take most of the work, and lose little, being near 0.
    """
    scale = distance_scale(inverse, FILTER)
    distance = (tap - first + 0.5)[None, :] * scale - ((centre - first) * scale)[:, None]
    return filter_weights(distance, ((tap >= from_tap) & (tap < to_tap))[None, :], inverse, FILTER)


@triton.jit
def _products(
    row,
    vertical,
    horizontal,
    fill,
    SOURCE: tl.constexpr,
    DOT: tl.constexpr,
    C: tl.constexpr,
    FILTER: tl.constexpr,
    PADDED: tl.constexpr,
    LAYOUT: tl.constexpr,
    ALIGNED: tl.constexpr,
    NVIDIA: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
    BH: tl.constexpr,
    BW: tl.constexpr,
):
    """The tile's values from 0 to 1, a tensor for each channel."""
    pack: tl.constexpr = C if LAYOUT == "packed" else 1  # elements of a plane that are one pixel
    planes: tl.constexpr = 1 if LAYOUT == "packed" else C
    extent_y, band_y = vertical
    extent_x, band_x = horizontal
    top, low_y, high_y, from_y, to_y = extent_y
    left, low_x, high_x, from_x, to_x = extent_x
    centre_y, inverse_y = band_y[0], band_y[1]
    centre_x, inverse_x = band_x[0], band_x[1]

    source = tl.load(row + ADDRESS).to(tl.pointer_type(SOURCE))
    source = tl.multiple_of(source, ALIGNED * (SOURCE.primitive_bitwidth // 8))
    stride_c = tl.multiple_of(tl.load(row + CHANNEL), ALIGNED if LAYOUT == "planar" else 1)
    stride_y = tl.multiple_of(tl.load(row + ROW), ALIGNED)
    stride_x = tl.load(row + PIXEL).to(tl.int32) if LAYOUT == "strided" else 1
    first = tl.multiple_of((left + low_x) * pack & -ALIGNED, ALIGNED)
    end = tl.where(low_x < high_x, (left + high_x) * pack, first)  # what lies beside the image must not be read
    readable_end = tl.multiple_of((end + ALIGNED - 1) & -ALIGNED, ALIGNED)

    out = ()
    for _ in tl.static_range(C):
        out += (tl.zeros((TH, TW), tl.float32),)  # type: ignore[assignment]
    for block_x in range(first, end, BW):
        element = block_x + tl.arange(0, BW)
        tap_x = element // pack - left
        shared = _band(tap_x, block_x // pack - left, centre_x, inverse_x, from_x, to_x, FILTER).to(DOT)
        across = ()
        for c in tl.static_range(pack):
            across += (tl.trans(tl.where((element % pack == c)[None, :], shared, 0.0)),)  # type: ignore[assignment]
        for block_y in range(low_y, high_y, BH):
            line = block_y + tl.arange(0, BH)
            at = source + (top + line).to(tl.int64)[:, None] * stride_y + (element * stride_x)[None, :]
            readable = (line < high_y)[:, None] & (element < readable_end)[None, :]
            blocks = ()
            for c in tl.static_range(planes):
                blocks += (tl.load(at + c * stride_c, readable, 0),)  # type: ignore[assignment]
            down = _band(line, block_y, centre_y, inverse_y, from_y, to_y, FILTER).to(DOT)
            more = ()
            for c in tl.static_range(C):
                if c < planes:
                    mixed = _mixed(down, blocks[c], element < (left + to_x) * pack, NVIDIA)
                more += (_dot(mixed, across[c if pack > 1 else 0], out[c]),)  # type: ignore[assignment]
            out = more

    share_y, seen_y = _shares(extent_y, band_y, FILTER, DOT)
    share_x, seen_x = _shares(extent_x, band_x, FILTER, DOT)
    middle: tl.constexpr = 128.0 / 255 if SOURCE.is_uint8() else 0.0
    unit: tl.constexpr = 1.0 / 255 if SOURCE.is_uint8() else 1.0
    share = (share_y * unit)[:, None] * share_x[None, :]
    base = middle
    if PADDED:
        base = fill + (middle - fill) * seen_y[:, None] * seen_x[None, :]
    values = ()
    for c in tl.static_range(C):
        values += (out[c] * share + base,)  # type: ignore[assignment]
    return values


@triton.jit
def _mixed(down, block, inside, NVIDIA: tl.constexpr):
    """The rows of a block of the source mixed into rows of the output."""
    if block.dtype == tl.uint8:
        block = _centred(block, NVIDIA)
    else:
        block = block.to(down.dtype)
        # What lies behind a row's end may be no number, which zero weights would not silence.
        block = tl.where(inside[None, :], block, 0.0)
    return _dot(down, block, tl.zeros((down.shape[0], block.shape[1]), tl.float32)).to(down.dtype)


@triton.jit
def _centred(block, NVIDIA: tl.constexpr):
    """Bytes less 128 in float16: 0x6400 and a byte are the bits of 1024 and the byte."""
    if NVIDIA:
        block = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 less;
            mov.b32 less, 0x64806480;
            prmt.b32 $0, $2, 0x64646464, 0x4140;
            prmt.b32 $1, $2, 0x64646464, 0x4342;
            sub.f16x2 $0, $0, less;
            sub.f16x2 $1, $1, less;
            }
            """,
            "=r,=r,r",
            [block],
            dtype=tl.float16,
            is_pure=True,
            pack=4,
        )
    else:
        block = (block.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - 1152.0
    return block


@triton.jit
def _dot(a, b, total):
    return tl.dot(a, b, total, input_precision="tf32" if a.dtype == tl.float16 else "tf32x3")


def constants(table: Table, images: Ragged) -> dict[str, Any]:
    """What the kernel is compiled for, beyond what both kernels share; and how it is launched."""
    layout = table.layout(0)
    return {
        "SOURCE": TYPES[images.dtype],
        "DOT": tl.float16 if images.dtype is torch.uint8 else tl.float32,
        "NVIDIA": is_nvidia(images.device),
        "LAYOUT": layout,
        "ALIGNED": 1 if layout == "strided" else _aligned(table, layout, images.dtype.itemsize),
        **dict(zip(("TH", "TW", "BH", "BW"), TILE + BLOCK, strict=True)),
        **LAUNCH,
    }


def _aligned(table: Table, layout: str, itemsize: int) -> int:
    """How many elements each row of each image begins at a multiple of: a word's worth, or 1."""
    steps = table.bits(0, ROW, CHANNEL) if layout == "planar" else table.bits(0, ROW)
    return WORD // itemsize if (table.bits(0, ADDRESS) | steps * itemsize) % WORD == 0 else 1
