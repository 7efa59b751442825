"""Resample kernel for sources of any dtype and memory layout; ``resample_planar`` is faster for planar uint8.

One launch crops, resizes, flips and runs the epilogue for images of different sizes. Resampling is linear and
separable: a tile of the output is ``Wy @ source @ Wx``, where Wy and Wx are band matrices of filter weights. A program
computes one tile, all channels. It loops over the blocks of the source that the bands cover, computes the block's
weights from the filter's formula, and multiplies on tensor cores. So a tile reads each source pixel once, however many
outputs it contributes to. Flips, offsets and "nearest" only change the weights.

Precision of uint8 sources: float16 holds a byte exactly, but rounds weights, so each output is divided by the sum of
its rounded weights. 128 is subtracted from each byte, which halves the rounding error of the intermediate product.
Floating-point sources are multiplied in tf32x3.

Interleaved channels stay interleaved: the first product combines rows, whatever their elements are. The second has one
weight matrix for each channel, with zeros at the elements of other channels.

With ``CLIP`` the tile is ``Wy @ clip(source @ Wx)``, clipped again: the product that combines columns comes first. All
of it is computed transposed, so that weights stand left and the source right in the first product here too.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fastload.kernels.triton.device import wait_for_previous_kernel
from fastload.kernels.triton.epilogue import add_statistics, apply_epilogue
from fastload.kernels.triton.filters import axis_filter, distance_scale, filter_weights, load_window, tile_of_program
from fastload.kernels.triton.launcher import Launcher
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
    Side,
    entry,
)

__all__ = ["constants", "launch"]

# Rows and columns of a tile of the output and of a block of the source: powers of two, 16 or more for ``tl.dot``.
TILE, BLOCK = (64, 32), (64, 64)
CLIPPED_TILE, CLIPPED_BLOCK = (32, 64), (32, 64)  # with larger ones, registers spill
LAUNCH = {"num_warps": 4, "num_stages": 1}

VECTOR_BYTES = 16  # bytes of the widest load of a thread

TAPS_PER_STEP = tl.constexpr(8)  # taps whose weights are summed in one step


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
    SOURCE: tl.constexpr,  # dtype of the sources
    DOT: tl.constexpr,  # dtype of the operands of ``tl.dot``
    C: tl.constexpr,
    FILTER: tl.constexpr,
    PADDED: tl.constexpr,  # some output needs ``fill``
    CLIP: tl.constexpr,  # values are clipped after each axis
    LAYOUT: tl.constexpr,  # of the sources: "planar", "packed" (interleaved) or "strided"
    ALIGNED: tl.constexpr,  # all source rows begin at multiples of so many elements
    TARGET: tl.constexpr,  # TARGET to NVIDIA: see ``store``
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
    wait_for_previous_kernel(OVERLAPS)
    n, first_y, first_x = tile_of_program(first_image, TH, TW)
    row = table + n.to(tl.int64) * COLUMNS
    height, width = entry(row, OUTPUT + HEIGHT), entry(row, OUTPUT + WIDTH)
    y, x = first_y + tl.arange(0, TH), first_x + tl.arange(0, TW)
    inside = (y < height)[:, None] & (x < width)[None, :]

    vertical = axis_filter(load_window(row, 0), y, first_y, height, TH, FILTER)
    horizontal = axis_filter(load_window(row, 1), x, first_x, width, TW, FILTER)
    source = _source_of(row, horizontal, SOURCE, LAYOUT, ALIGNED, C)
    if CLIP:
        values = _clipped_tile(
            source, vertical, horizontal, fill, SOURCE, DOT, C, FILTER, LAYOUT, NVIDIA, TH, TW, BH, BW
        )
    else:
        values = _resampled_tile(
            source, vertical, horizontal, fill, SOURCE, DOT, C, FILTER, PADDED, LAYOUT, NVIDIA, TH, TW, BH, BW
        )
    last_y = tl.minimum(first_y + TH, height) - 1
    values = apply_epilogue(
        values, n, height * width, y[:, None], x[None, :], first_y, last_y, program, previous, affine, erase, seeds
    )
    if statistics is not None:
        whole = (first_y + TH <= height) & (first_x + TW <= width)
        add_statistics(values, inside, whole, n, statistics, RANGES)
    store(row, values, first_y, first_x, height, width, TARGET, TARGET_ALIGNED, TARGET_PLANAR, GROUP, PAIRS, NVIDIA)


@triton.jit
def _normalizers(extent, band, FILTER: tl.constexpr, DOT: tl.constexpr):
    """For each output: 1 / the sum of its weights, and the fraction of that sum that lies inside of the image."""
    _, _, _, from_tap, to_tap = extent
    centre, inverse, support, length, present = band
    begin = (centre - support + 0.5).to(tl.int32)
    total, covered = tl.zeros(centre.shape, tl.float32), tl.zeros(centre.shape, tl.float32)
    for step in range(0, (2 * support).to(tl.int32) + 2, TAPS_PER_STEP):
        tap = (begin + step)[:, None] + tl.arange(0, TAPS_PER_STEP)[None, :]
        distance = (tap - centre[:, None] + 0.5) * distance_scale(inverse, FILTER)
        weight = filter_weights(distance, (tap >= 0) & (tap < length), inverse, FILTER).to(DOT).to(tl.float32)
        total += tl.sum(weight, 1)
        covered += tl.sum(tl.where((tap >= from_tap) & (tap < to_tap), weight, 0.0), 1)
    normalizer = tl.where(present, 1 / tl.where(total == 0, 1.0, total), 0.0)
    return normalizer, covered * normalizer


@triton.jit
def _band_matrix(tap, first, centre, inverse, from_tap, to_tap, FILTER: tl.constexpr):
    """Weight matrix of a block: a row for each output, a column for each tap of the source; zero outside of a band.

    Taps are columns, since a thread holds few columns in the MMA layout: it compares only those with the image's
    bounds. Distances are the difference of two vectors, which cost little. Both are relative to ``first``, the block's
    first tap, so that they are small and float32 rounds them little.
    """
    scale = distance_scale(inverse, FILTER)
    distance = (tap - first + 0.5)[None, :] * scale - ((centre - first) * scale)[:, None]
    return filter_weights(distance, ((tap >= from_tap) & (tap < to_tap))[None, :], inverse, FILTER)


@triton.jit
def _source_of(row, horizontal, SOURCE: tl.constexpr, LAYOUT: tl.constexpr, ALIGNED: tl.constexpr, C: tl.constexpr):
    """Where the source lies, and the elements of its rows that the tile needs: their range, and what may be read."""
    pack: tl.constexpr = C if LAYOUT == "packed" else 1  # elements of one pixel in a loaded row
    left, low_x, high_x, _, _ = horizontal[0]
    source = tl.load(row + ADDRESS).to(tl.pointer_type(SOURCE))
    source = tl.multiple_of(source, ALIGNED * (SOURCE.primitive_bitwidth // 8))
    stride_c = tl.multiple_of(tl.load(row + CHANNEL), ALIGNED if LAYOUT == "planar" else 1)
    stride_y = tl.multiple_of(tl.load(row + ROW), ALIGNED)
    stride_x = tl.load(row + PIXEL).to(tl.int32) if LAYOUT == "strided" else 1
    first = tl.multiple_of((left + low_x) * pack & -ALIGNED, ALIGNED)
    # An empty range if the tile needs no pixel of the image: then there is nothing to load.
    end = tl.where(low_x < high_x, (left + high_x) * pack, first)
    readable_end = tl.multiple_of((end + ALIGNED - 1) & -ALIGNED, ALIGNED)
    return source, stride_c, stride_y, stride_x, first, end, readable_end


@triton.jit
def _load_blocks(source, line, element, extent_y, planes: tl.constexpr):
    """A block of rows ``line`` of the box and of elements ``element`` of the image's rows: one for each plane."""
    pointer, stride_c, stride_y, stride_x, _, _, readable_end = source
    top, _, high_y, _, _ = extent_y
    at = pointer + (top + line).to(tl.int64)[:, None] * stride_y + (element * stride_x)[None, :]
    readable = (line < high_y)[:, None] & (element < readable_end)[None, :]
    blocks = ()
    for c in tl.static_range(planes):
        blocks += (tl.load(at + c * stride_c, readable, 0),)  # type: ignore[assignment]
    return blocks


@triton.jit
def _column_weights(element, block_x, horizontal, FILTER: tl.constexpr, pack: tl.constexpr, DOT: tl.constexpr):
    """A block's horizontal weights: one matrix, or one for each of the interleaved channels."""
    extent_x, band_x = horizontal
    left, _, _, from_x, to_x = extent_x
    centre, inverse = band_x[0], band_x[1]
    tap = element // pack - left
    weights = _band_matrix(tap, block_x // pack - left, centre, inverse, from_x, to_x, FILTER).to(DOT)
    matrices = ()
    for c in tl.static_range(pack):
        matrices += (tl.where((element % pack == c)[None, :], weights, 0.0),)  # type: ignore[assignment]
    return matrices


@triton.jit
def _resampled_tile(
    source,
    vertical,
    horizontal,
    fill,
    SOURCE: tl.constexpr,
    DOT: tl.constexpr,
    C: tl.constexpr,
    FILTER: tl.constexpr,
    PADDED: tl.constexpr,
    LAYOUT: tl.constexpr,
    NVIDIA: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
    BH: tl.constexpr,
    BW: tl.constexpr,
):
    """Compute the tile: values from 0 to 1, a float32 tensor (TH, TW) for each channel."""
    pack: tl.constexpr = C if LAYOUT == "packed" else 1
    planes: tl.constexpr = 1 if LAYOUT == "packed" else C
    extent_y, band_y = vertical
    extent_x, band_x = horizontal
    _, low_y, high_y, from_y, to_y = extent_y
    _, _, _, _, first, end, _ = source

    out = ()
    for _ in tl.static_range(C):
        out += (tl.zeros((TH, TW), tl.float32),)  # type: ignore[assignment]
    for block_x in range(first, end, BW):
        element = block_x + tl.arange(0, BW)
        column_weights = _column_weights(element, block_x, horizontal, FILTER, pack, DOT)
        inside = element < (extent_x[0] + extent_x[4]) * pack
        for block_y in range(low_y, high_y, BH):
            line = block_y + tl.arange(0, BH)
            blocks = _load_blocks(source, line, element, extent_y, planes)
            row_weights = _band_matrix(line, block_y, band_y[0], band_y[1], from_y, to_y, FILTER).to(DOT)
            next_out = ()
            for c in tl.static_range(C):
                if c < planes:
                    filtered = _dot(
                        row_weights, _operand(blocks[c], inside, DOT, NVIDIA), tl.zeros((TH, BW), tl.float32)
                    ).to(DOT)
                weights = tl.trans(column_weights[c if pack > 1 else 0])
                next_out += (_dot(filtered, weights, out[c]),)  # type: ignore[assignment]
            out = next_out

    normalizer_y, covered_y = _normalizers(extent_y, band_y, FILTER, DOT)
    normalizer_x, covered_x = _normalizers(extent_x, band_x, FILTER, DOT)
    middle: tl.constexpr = 128.0 / 255 if SOURCE.is_uint8() else 0.0
    unit: tl.constexpr = 1.0 / 255 if SOURCE.is_uint8() else 1.0
    normalizer = (normalizer_y * unit)[:, None] * normalizer_x[None, :]
    base = middle
    if PADDED:
        base = fill + (middle - fill) * covered_y[:, None] * covered_x[None, :]
    values = ()
    for c in tl.static_range(C):
        values += (out[c] * normalizer + base,)  # type: ignore[assignment]
    return values


@triton.jit
def _clipped_tile(
    source,
    vertical,
    horizontal,
    fill,
    SOURCE: tl.constexpr,
    DOT: tl.constexpr,
    C: tl.constexpr,
    FILTER: tl.constexpr,
    LAYOUT: tl.constexpr,
    NVIDIA: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
    BH: tl.constexpr,
    BW: tl.constexpr,
):
    """The same, with values clipped after each axis: all columns of a block's rows are combined before its rows are."""
    pack: tl.constexpr = C if LAYOUT == "packed" else 1
    planes: tl.constexpr = 1 if LAYOUT == "packed" else C
    middle: tl.constexpr = 128.0 / 255 if SOURCE.is_uint8() else 0.5
    unit: tl.constexpr = 1.0 / 255 if SOURCE.is_uint8() else 1.0
    taken: tl.constexpr = middle if SOURCE.is_uint8() else 0.0  # what :func:`_operand` subtracts
    extent_y, band_y = vertical
    extent_x, band_x = horizontal
    _, low_y, high_y, from_y, to_y = extent_y
    _, _, _, _, first, end, _ = source
    normalizer_x, covered_x = _normalizers(extent_x, band_x, FILTER, DOT)
    normalizer_y, covered_y = _normalizers(extent_y, band_y, FILTER, DOT)
    base_x = fill + (taken - fill) * covered_x

    out = ()
    for _ in tl.static_range(C):
        out += (tl.zeros((TW, TH), tl.float32),)  # type: ignore[assignment]
    for block_y in range(low_y, high_y, BH):
        line = block_y + tl.arange(0, BH)
        rows = ()
        for _ in tl.static_range(C):
            rows += (tl.zeros((TW, BH), tl.float32),)  # type: ignore[assignment]
        for block_x in range(first, end, BW):
            element = block_x + tl.arange(0, BW)
            column_weights = _column_weights(element, block_x, horizontal, FILTER, pack, DOT)
            inside = element < (extent_x[0] + extent_x[4]) * pack
            blocks = _load_blocks(source, line, element, extent_y, planes)
            next_rows = ()
            for c in tl.static_range(C):
                if c < planes:
                    block = tl.trans(_operand(blocks[c], inside, DOT, NVIDIA))
                next_rows += (_dot(column_weights[c if pack > 1 else 0], block, rows[c]),)  # type: ignore[assignment]
            rows = next_rows
        row_weights = tl.trans(_band_matrix(line, block_y, band_y[0], band_y[1], from_y, to_y, FILTER).to(DOT))
        next_out = ()
        for c in tl.static_range(C):
            clipped = _clip(rows[c] * (normalizer_x * unit)[:, None] + base_x[:, None]) - middle
            next_out += (_dot(clipped.to(DOT), row_weights, out[c]),)  # type: ignore[assignment]
        out = next_out

    values = ()
    for c in tl.static_range(C):
        base_y = (fill + (middle - fill) * covered_y)[None, :]
        values += (tl.trans(_clip(out[c] * normalizer_y[None, :] + base_y)),)  # type: ignore[assignment]
    return values


@triton.jit
def _clip(values):
    return tl.minimum(tl.maximum(values, 0.0), 1.0)


@triton.jit
def _operand(block, inside, DOT: tl.constexpr, NVIDIA: tl.constexpr):
    """A block of the source as an operand of ``tl.dot``: bytes less 128."""
    if block.dtype == tl.uint8:
        operand = _centre_bytes(block, NVIDIA)
    else:
        values = block.to(DOT)
        # Elements past a row's end may be NaN or infinite; times a zero weight they would still be NaN.
        operand = tl.where(inside[None, :], values, 0.0)
    return operand


@triton.jit
def _centre_bytes(block, NVIDIA: tl.constexpr):
    """Convert each byte b to the float16 ``b - 128``. The bits 0x6400 + b are the float16 1024 + b."""
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


launch = Launcher(resample_kernel)


def constants(source: Side, dtype: torch.dtype, *, clip: bool) -> dict[str, Any]:
    """The kernel's own specialisation constants and launch options, for sources of ``dtype`` that lie so."""
    sides = CLIPPED_TILE + CLIPPED_BLOCK if clip else TILE + BLOCK
    return {
        "SOURCE": TYPES[dtype],
        "DOT": tl.float16 if dtype is torch.uint8 else tl.float32,
        "LAYOUT": source.layout,
        "ALIGNED": 1 if source.layout == "strided" else _row_alignment(source, dtype.itemsize),
        "CLIP": clip,
        **dict(zip(("TH", "TW", "BH", "BW"), sides, strict=True)),
        **LAUNCH,
    }


def _row_alignment(source: Side, itemsize: int) -> int:
    """Elements in ``VECTOR_BYTES`` if every row of every image is aligned to that; else 1."""
    step = min(source.row, source.channel) if source.layout == "planar" else source.row
    return VECTOR_BYTES // itemsize if min(source.address, step * itemsize) >= VECTOR_BYTES else 1
