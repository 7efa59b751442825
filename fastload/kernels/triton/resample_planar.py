"""Crop, resize, flip and finish images of different sizes in one launch.

This is for bytes in planes, as decoders deliver them; ``resample_generic`` is for the rest. A program, one warp,
makes a tile of the output of all channels, and walks the columns of the source which that tile needs, block by block.
Rows are mixed tap by tap, as ``rows`` does it. Columns, where neighbours need neighbours, are mixed by a product with a
band matrix on tensor cores: its weights are made from the filter's formula, once for all channels. So flips, offsets
and "nearest" are just other weights. And so is the order in which columns come: those of the source, so that a thread
multiplies what it has read, and those of the output, so that it is left what it can store in words.

float16 holds the rows' mixture and the band's weights, by whose rounded sum each output is divided.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from fastload.kernels.triton.device import is_nvidia, wait_for_kernel_before
from fastload.kernels.triton.epilogue import add_statistics, apply_epilogue
from fastload.kernels.triton.filters import axis_filter, distance_scale, filter_weights, tile_of_program
from fastload.kernels.triton.rows import HALF_BYTE, HALF_WEIGHT, MIDDLE, QUAD, SHARE, mixed_rows, side_by_side, taps_of
from fastload.kernels.triton.store import store
from fastload.kernels.triton.table import ADDRESS, CHANNEL, COLUMNS, HEIGHT, OUTPUT, ROW, WIDTH, Table, entry

__all__ = ["TILE", "constants", "resample_kernel"]

TILE = (16, 32)  # of the output: rows and columns
LAUNCH = {"num_warps": 1, "num_stages": 1}  # one warp waits for no other
REGISTERS = {"maxnreg": 128}  # on NVIDIA: room for 16 programs at a time
HALF_TAPS = 6  # sums of so many are rounded, in float16, by less than a thousandth of full scale


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
    C: tl.constexpr,
    FILTER: tl.constexpr,
    PADDED: tl.constexpr,
    WORDS: tl.constexpr,  # rows of sources begin at multiples of ``SHARE``
    OFFSETS: tl.constexpr,  # dtype that holds where in a plane a row begins
    TARGET: tl.constexpr,  # this and the next four are what ``store`` takes
    TARGET_ALIGNED: tl.constexpr,
    TARGET_PLANAR: tl.constexpr,
    GROUP: tl.constexpr,
    PAIRS: tl.constexpr,
    RUN: tl.constexpr,  # neighbours of a row that a thread is left
    CONVERT: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_kernel_before(OVERLAPS)
    n, first_y, first_x = tile_of_program(first_image, TH, TW)
    row = table + n.to(tl.int64) * COLUMNS
    height, width = entry(row, OUTPUT + HEIGHT), entry(row, OUTPUT + WIDTH)
    if (first_y >= height) | (first_x >= width):
        return
    y, x = first_y + tl.arange(0, TH), first_x + tl.arange(0, TW)
    spread_y = first_y + tl.arange(0, TH * QUAD) // QUAD  # of the threads that hold a row, each by itself

    spread = axis_filter(row, 0, spread_y, first_y, height, TH, FILTER)
    vertical = axis_filter(row, 0, y, first_y, height, TH, FILTER)
    horizontal = axis_filter(row, 1, first_x + _dealt(TW, RUN), first_x, width, TW, FILTER)
    values = _products(row, spread, vertical, horizontal, fill, C, FILTER, PADDED, WORDS, OFFSETS, RUN, CONVERT, TH, TW)
    last_y = tl.minimum(first_y + TH, height) - 1
    values = apply_epilogue(
        values, n, height * width, y[:, None], x[None, :], first_y, last_y, program, previous, affine, erase, seeds
    )
    if statistics is not None:
        inside = (y < height)[:, None] & (x < width)[None, :]
        whole = (first_y + TH <= height) & (first_x + TW <= width)
        add_statistics(values, inside, whole, n, statistics, RANGES)
    store(row, values, first_y, first_x, height, width, TARGET, TARGET_ALIGNED, TARGET_PLANAR, GROUP, PAIRS)


@triton.jit
def _dealt(TW: tl.constexpr, RUN: tl.constexpr):
    """Which column of the tile each column of the product is.

    A product leaves a thread two neighbours of every eight columns. ``RUN`` / 2 such pairs are made neighbours.
    """
    column = tl.arange(0, TW)
    pair, thread, one = column // (2 * QUAD), column // 2 % QUAD, column % 2
    return pair // (RUN // 2) * (QUAD * RUN) + thread * RUN + pair % (RUN // 2) * 2 + one


@triton.jit
def _in_order(value, RUN: tl.constexpr):
    """The columns of a product as the tile has them; no thread need give any away."""
    rows: tl.constexpr = value.shape[0]
    columns: tl.constexpr = value.shape[1]
    value = tl.reshape(value, (rows, columns // (QUAD * RUN), RUN // 2, QUAD, 2))
    return tl.reshape(tl.permute(value, (0, 1, 3, 2, 4)), (rows, columns))


@triton.jit
def _products(
    row,
    spread,
    vertical,
    horizontal,
    fill,
    C: tl.constexpr,
    FILTER: tl.constexpr,
    PADDED: tl.constexpr,
    WORDS: tl.constexpr,
    OFFSETS: tl.constexpr,
    RUN: tl.constexpr,
    CONVERT: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
):
    """The tile's values from 0 to 1, a tensor for each channel."""
    extent_y, band_y = vertical
    extent_x, band_x = horizontal
    left, low_x, high_x, from_x, to_x = extent_x
    centre_x, inverse_x = band_x[0], band_x[1]

    source = tl.load(row + ADDRESS).to(tl.pointer_type(tl.uint8))
    first = (left + low_x) & (-SHARE if WORDS else -1)
    end = left + high_x
    if PADDED:
        end = tl.where(low_x < high_x, end, first)  # what lies beside the image must not be read
    else:
        tl.assume(first < end)
    lines = source, tl.load(row + CHANNEL), tl.load(row + ROW).to(OFFSETS), entry(row, HEIGHT) - 1, end

    four = tl.arange(0, 2 * QUAD)  # of a block's columns: the product takes one of each thread's, then the other
    tap = first - left + four % QUAD * SHARE + four // QUAD * 4
    scale = distance_scale(inverse_x, FILTER)
    distance = (tap[None, :] - centre_x[:, None] + 0.5) * scale
    tap -= from_x
    out = ()
    for _ in tl.static_range(C):
        out += (tl.zeros((TH, TW), tl.float32),)  # type: ignore[assignment]
    for block_x in range(first, end, SHARE * QUAD):
        mixed = mixed_rows(block_x, lines, spread, C, FILTER, WORDS, CONVERT)
        across = tl.trans(_across(distance, tap, to_x - from_x, inverse_x, FILTER))
        more = ()
        for c in tl.static_range(C):
            more += (tl.dot(mixed[c], across, out[c]),)  # type: ignore[assignment]
        out = more
        distance += SHARE * QUAD * scale
        tap += SHARE * QUAD

    unit: tl.constexpr = (1 / (HALF_BYTE * HALF_WEIGHT) if CONVERT == "half" else 256.0) / 255
    middle: tl.constexpr = MIDDLE / 255
    share_y, seen_y = _sums(extent_y, band_y, FILTER, tl.float16 if CONVERT == "half" else tl.float32)
    share_x, seen_x = _sums(extent_x, band_x, FILTER, tl.float16)
    base = (share_y * middle)[:, None]
    if PADDED:
        base = base * seen_x[None, :] + fill * (1 - seen_y[:, None] * seen_x[None, :])
    share = (share_y * unit)[:, None] * share_x[None, :]
    values = ()
    for c in tl.static_range(C):
        values += (_in_order(out[c] * share + base, RUN),)  # type: ignore[assignment]
    return values


@triton.jit
def _across(distance, tap, taps, inverse, FILTER: tl.constexpr):
    """The weights of a block's taps, float16 (TW, columns), of which each fourth is one of ``tap``, at ``distance``."""
    scale = distance_scale(inverse, FILTER)
    weights = ()
    for k in tl.static_range(4):
        inside = (tap + k).to(tl.uint32) < taps.to(tl.uint32)
        there = distance + k * scale if k > 0 else distance
        weights += (filter_weights(there, inside[None, :], inverse, FILTER).to(tl.float16),)  # type: ignore[assignment]
    return side_by_side(weights)


@triton.jit
def _sums(extent, band, FILTER: tl.constexpr, DOT: tl.constexpr):
    """One over the sum of each output's weights; and the share of that sum which lies in the image, not in ``fill``."""
    _, _, _, from_tap, to_tap = extent
    centre, inverse, _, length, present = band
    begin, taps = taps_of(band, FILTER)
    scale = distance_scale(inverse, FILTER)
    distance = (begin - centre + 0.5) * scale
    total, seen = tl.zeros(centre.shape, tl.float32), tl.zeros(centre.shape, tl.float32)
    for k in range(taps):
        tap = begin + k
        inside = tap.to(tl.uint32) < length.to(tl.uint32)
        weight = filter_weights(distance + k * scale, inside, inverse, FILTER).to(DOT).to(tl.float32)
        total += weight
        seen += tl.where((tap >= from_tap) & (tap < to_tap), weight, 0.0)
    share = tl.where(present, 1 / tl.where(total == 0, 1.0, total), 0.0)
    return share, seen * share


def constants(table: Table, device: torch.device, interpolation: str, shared: dict[str, Any]) -> dict[str, Any]:
    """What the kernel is compiled for, beyond what both kernels share; and how it is launched."""
    options = {
        "WORDS": table.bits(0, ADDRESS, CHANNEL, ROW) % SHARE.value == 0,
        # Multiplying 64 bits takes several times as long as 32.
        "OFFSETS": tl.int32 if table.longest_plane < 2**31 else tl.int64,
        "RUN": _run(shared),
    }
    options |= {"TH": TILE[0], "TW": TILE[1]} | LAUNCH
    if not is_nvidia(device):
        return options | {"CONVERT": "plain"}
    convert = "half" if _most_taps(table, interpolation) <= HALF_TAPS else "float"
    return options | REGISTERS | {"CONVERT": convert}


def _run(shared: dict[str, Any]) -> int:
    """How many neighbours of a row a thread stores at once; tensor cores leave it two."""
    if shared["TARGET_PLANAR"]:
        return int(min(max(shared["TARGET_ALIGNED"], 2), 8))
    return int(max(shared["GROUP"], 2))


def _most_taps(table: Table, interpolation: str) -> int:
    """How many rows of a source at most are mixed into a row of its output."""
    if interpolation == "nearest":
        return 1
    return math.ceil(2 * max(table.largest_scale, 1.0) * (2 if interpolation == "bicubic" else 1))
