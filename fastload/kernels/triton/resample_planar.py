"""Resample kernel for planar uint8 sources, as decoders deliver them; ``resample_generic`` handles the rest.

One launch crops, resizes, flips and runs the epilogue for images of different sizes. A program is one warp. It computes
a tile of the output, all channels, or a few side by side: they share sectors of the source, which it then reads from
the first cache. For a tile it loops over the source columns that the tile needs in blocks:

1. Vertical pass: weighted sums of source rows, tap by tap (``rows``).
2. Horizontal pass: a product with a band matrix of weights on tensor cores. The weights follow from the filter's
   formula and are computed once for all channels. Flips, offsets and "nearest" only change the weights.

The weight matrix also permutes columns. Its rows follow the order in which threads hold the source columns, so the
vertical pass feeds the MMA without moving data between threads. Its columns are ordered such that each thread receives
``RUN`` neighbours of an output row, and can store them in wide words.

The sums of rows and the weights are float16. Each output is divided by the sum of its weights, which is taken from the
filter's formula in "bilinear", and else added up.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from fastload.kernels.triton.device import is_nvidia, wait_for_previous_kernel
from fastload.kernels.triton.epilogue import add_statistics, apply_loaded, load_parameters
from fastload.kernels.triton.filters import axis_filter, distance_scale, filter_weights, load_window, tile_of_program
from fastload.kernels.triton.launcher import Launcher
from fastload.kernels.triton.rows import (
    HALF_BYTE,
    HALF_WEIGHT,
    MIDDLE,
    QUAD,
    THREAD_COLUMNS,
    filter_rows,
    interleave,
    taps_of,
)
from fastload.kernels.triton.store import store
from fastload.kernels.triton.table import ADDRESS, CHANNEL, COLUMNS, HEIGHT, OUTPUT, ROW, WIDTH, ImageTable, Side, entry

__all__ = ["constants", "has_few_taps", "launch"]

TILE = (16, 32)  # rows and columns of a tile of the output
TILES = 2  # of a program, side by side, where images shrink; enlarged ones share fewer sectors of the source
LAUNCH = {"num_warps": 1, "num_stages": 1}  # a single warp never waits for another
REGISTERS = {"maxnreg": 128}  # on NVIDIA: occupancy of 16 programs on a multiprocessor
MAX_HALF_TAPS = 6  # rows summed in float16: the rounding error stays below a thousandth of full scale


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
    PADDED: tl.constexpr,  # some output needs ``fill``
    WORDS: tl.constexpr,  # all source rows begin at multiples of ``THREAD_COLUMNS``
    OFFSETS: tl.constexpr,  # dtype of a row's offset in its plane
    TARGET: tl.constexpr,  # TARGET to NVIDIA: see ``store``
    TARGET_ALIGNED: tl.constexpr,
    TARGET_PLANAR: tl.constexpr,
    GROUP: tl.constexpr,
    PAIRS: tl.constexpr,
    NVIDIA: tl.constexpr,
    RUN: tl.constexpr,  # neighbours of an output row that a thread holds after the MMA
    HALF: tl.constexpr,  # sums of rows are float16, not float32
    TH: tl.constexpr,
    TW: tl.constexpr,
    TILES: tl.constexpr,  # of a program, side by side
    OVERLAPS: tl.constexpr,
):
    wait_for_previous_kernel(OVERLAPS)
    n, first_y, begin = tile_of_program(first_image, TH, TILES * TW)
    row = table + n.to(tl.int64) * COLUMNS
    height, width = entry(row, OUTPUT + HEIGHT), entry(row, OUTPUT + WIDTH)
    window_y, window_x = load_window(row, 0), load_window(row, 1)
    source = tl.load(row + ADDRESS), tl.load(row + CHANNEL), tl.load(row + ROW).to(OFFSETS), entry(row, HEIGHT) - 1
    # A program without a tile runs on to its end. To return here would hold back the loads above, whose values are
    # used below: the compiler moves them behind the branch, and they would wait for the two of its condition.
    width = tl.where(first_y < height, width, 0)
    last_y = tl.minimum(first_y + TH, height) - 1
    loaded = load_parameters(n, height * width, first_y, last_y, program, previous, erase)
    y = first_y + tl.arange(0, TH)
    vertical = axis_filter(window_y, y, first_y, height, TH, FILTER)
    normalizers_y = _normalizers(vertical, FILTER, PADDED, tl.float16 if HALF else tl.float32)
    # Each row for each thread of its quad.
    thread_vertical = axis_filter(window_y, first_y + tl.arange(0, TH * QUAD) // QUAD, first_y, height, TH, FILTER)
    place = row, n, y, first_y, height, width
    filters = thread_vertical, normalizers_y, window_x
    steps = loaded, program, previous, affine, erase, seeds, statistics
    if TILES == 1:
        if begin < width:
            _make_tile(
                begin, source, place, filters, fill, steps, RANGES, C, FILTER, PADDED, WORDS,
                TARGET, TARGET_ALIGNED, TARGET_PLANAR, GROUP, PAIRS, NVIDIA, RUN, HALF, TH, TW,
            )  # fmt: skip
    else:
        for first_x in range(begin, tl.minimum(begin + TILES * TW, width), TW):
            _make_tile(
                first_x, source, place, filters, fill, steps, RANGES, C, FILTER, PADDED, WORDS,
                TARGET, TARGET_ALIGNED, TARGET_PLANAR, GROUP, PAIRS, NVIDIA, RUN, HALF, TH, TW,
            )  # fmt: skip


@triton.jit
def _make_tile(
    first_x,
    source,  # address; strides of channels and rows; last row
    place,  # the image's row of the table, and its number; the tile's rows, and the first one; the output's size
    filters,  # of the rows, for each thread of a quad, and their normalizers; and the window of the columns
    fill,
    steps,  # what ``load_parameters`` returned, and arguments of the epilogue
    RANGES: tl.constexpr,
    C: tl.constexpr,
    FILTER: tl.constexpr,
    PADDED: tl.constexpr,
    WORDS: tl.constexpr,
    TARGET: tl.constexpr,
    TARGET_ALIGNED: tl.constexpr,
    TARGET_PLANAR: tl.constexpr,
    GROUP: tl.constexpr,
    PAIRS: tl.constexpr,
    NVIDIA: tl.constexpr,
    RUN: tl.constexpr,
    HALF: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
):
    """Resample the tile that begins at column ``first_x``, run the epilogue, and store it."""
    row, n, y, first_y, height, width = place
    vertical, normalizers_y, window_x = filters
    loaded, program, previous, affine, erase, seeds, statistics = steps
    horizontal = axis_filter(window_x, first_x + _tile_columns(TW, RUN), first_x, width, TW, FILTER)
    sums = _filtered_tile(source, vertical, horizontal, C, FILTER, PADDED, WORDS, HALF, NVIDIA, TH, TW)
    values = _normalized_tile(sums, normalizers_y, horizontal, fill, FILTER, PADDED, RUN, HALF)
    x = first_x + tl.arange(0, TW)
    values = apply_loaded(values, loaded, n, y[:, None], x[None, :], program, previous, affine, erase, seeds)
    if statistics is not None:
        inside = (y < height)[:, None] & (x < width)[None, :]
        whole = (first_y + TH <= height) & (first_x + TW <= width)
        add_statistics(values, inside, whole, n, statistics, RANGES)
    store(row, values, first_y, first_x, height, width, TARGET, TARGET_ALIGNED, TARGET_PLANAR, GROUP, PAIRS, NVIDIA)


@triton.jit
def _tile_columns(TW: tl.constexpr, RUN: tl.constexpr):
    """The tile's column that each column of the MMA result holds.

    In the MMA layout a thread holds two neighbours of every eight columns. This order makes ``RUN / 2`` such pairs of a
    thread neighbours in the tile.
    """
    column = tl.arange(0, TW)
    pair, thread, parity = column // (2 * QUAD), column // 2 % QUAD, column % 2
    return pair // (RUN // 2) * (QUAD * RUN) + thread * RUN + pair % (RUN // 2) * 2 + parity


@triton.jit
def _reorder_columns(value, RUN: tl.constexpr):
    """Reorder the columns of the MMA result to those of the tile. Every value stays in its thread."""
    rows: tl.constexpr = value.shape[0]
    columns: tl.constexpr = value.shape[1]
    value = tl.reshape(value, (rows, columns // (QUAD * RUN), RUN // 2, QUAD, 2))
    return tl.reshape(tl.permute(value, (0, 1, 3, 2, 4)), (rows, columns))


@triton.jit
def _filtered_tile(
    source,
    vertical,
    horizontal,
    C: tl.constexpr,
    FILTER: tl.constexpr,
    PADDED: tl.constexpr,
    WORDS: tl.constexpr,
    HALF: tl.constexpr,
    NVIDIA: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
):
    """Weighted sums of the source for the tile: float32 (TH, TW) for each channel, in the MMA result's order."""
    address, stride_c, stride_y, last_y = source
    extent, band = horizontal
    left, low, high, from_tap, to_tap = extent
    centre, inverse = band[0], band[1]

    first = (left + low) & (-THREAD_COLUMNS if WORDS else -1)
    end = left + high
    if PADDED:
        # An empty range if the tile needs no pixel of the image: then there is nothing to load.
        end = tl.where(low < high, end, first)
    else:
        tl.assume(first < end)
    view = address.to(tl.pointer_type(tl.uint8)), stride_c, stride_y, last_y, end
    inside = left + from_tap, left + to_tap

    # A block's words of four columns, in the operand's order: each thread's first word, then each thread's second.
    word = tl.arange(0, 2 * QUAD)
    tap = first - left + word % QUAD * THREAD_COLUMNS + word // QUAD * 4
    scale = distance_scale(inverse, FILTER)
    distance, step = (tap[None, :] - centre[:, None] + 0.5) * scale, _times(scale, THREAD_COLUMNS * QUAD)
    sums = ()
    for _ in tl.static_range(C):
        sums += (tl.zeros((TH, TW), tl.float32),)  # type: ignore[assignment]
    for block_x in range(first, end, THREAD_COLUMNS * QUAD):
        filtered = filter_rows(block_x, inside, view, vertical, C, FILTER, WORDS, HALF, NVIDIA)
        column_weights = tl.trans(_column_weights(distance, inverse, FILTER))
        next_sums = ()
        for c in tl.static_range(C):
            next_sums += (tl.dot(filtered[c], column_weights, sums[c]),)  # type: ignore[assignment]
        sums = next_sums
        distance += step
    return sums


@triton.jit
def _normalized_tile(
    sums,
    normalizers_y,
    horizontal,
    fill,
    FILTER: tl.constexpr,
    PADDED: tl.constexpr,
    RUN: tl.constexpr,
    HALF: tl.constexpr,
):
    """The tile's values, from 0 to 1, of what ``_filtered_tile`` returns."""
    unit: tl.constexpr = (1 / (HALF_BYTE * HALF_WEIGHT) if HALF else 256.0) / 255
    middle: tl.constexpr = MIDDLE / 255
    normalizer_y, covered_y = normalizers_y
    normalizer_x, covered_x = _normalizers(horizontal, FILTER, PADDED, tl.float16)
    base = (normalizer_y * middle)[:, None]
    if PADDED:
        base = base * covered_x[None, :] + fill * (1 - covered_y[:, None] * covered_x[None, :])
    normalizer = (normalizer_y * unit)[:, None] * normalizer_x[None, :]
    values = ()
    for c in tl.static_range(len(sums)):
        values += (_reorder_columns(sums[c] * normalizer + base, RUN),)  # type: ignore[assignment]
    return values


@triton.jit
def _column_weights(distance, inverse, FILTER: tl.constexpr):
    """A block's horizontal weights, float16 (TW, columns).

    ``distance`` is that of the first column of each word of four.
    """
    scale = distance_scale(inverse, FILTER)
    weights = ()
    for k in tl.static_range(4):
        shifted = distance + _times(scale, k) if k > 0 else distance
        weights += (filter_weights(shifted, None, inverse, FILTER).to(tl.float16),)  # type: ignore[assignment]
    return interleave(weights)


@triton.jit
def _times(scale, FACTOR: tl.constexpr):
    """``FACTOR * scale``, kept from being fused with an addition that follows.

    The fused instruction takes an operand that all threads share from a register, to which it is copied first.
    """
    return tl.fma(scale, FACTOR * 1.0, 0.0)


@triton.jit
def _normalizers(axis, FILTER: tl.constexpr, PADDED: tl.constexpr, DOT: tl.constexpr):
    """For each output: 1 / the sum of its weights, and the fraction of that sum that lies inside of the image."""
    if FILTER == "bilinear" and not PADDED:
        total = _sum_of_triangle(axis)
        covered = total
    else:
        total, covered = _sums_of_weights(axis, FILTER, DOT)
    normalizer = tl.where(axis[1][4], 1 / tl.where(total == 0, 1.0, total), 0.0)
    return normalizer, covered * normalizer


@triton.jit
def _sum_of_triangle(axis):
    """For each output: the sum of its weights in "bilinear", before they are rounded.

    On either side of the centre weights fall in equal steps: their sum is their number times that of the mean distance.
    """
    centre, inverse, support, length, _ = axis[1]
    begin = tl.maximum(tl.floor(centre - support + 0.5), 0.0)
    stop = tl.floor(centre + 0.5)
    end = tl.minimum(tl.floor(centre + support + 0.5), length.to(tl.float32))
    total = tl.zeros(centre.shape, tl.float32)
    # A loop, since without one the compiler has each thread compute this for all the outputs that it holds.
    for _ in range(2):
        distance = tl.abs(0.5 * (begin + stop) - centre)
        total += (stop - begin) * (inverse - distance * distance_scale(inverse, "bilinear"))
        begin, stop = stop, end
    return total


@triton.jit
def _sums_of_weights(axis, FILTER: tl.constexpr, DOT: tl.constexpr):
    """For each output: the sum of its weights, rounded to ``DOT``, and of those that lie inside of the image."""
    extent, band = axis
    _, _, _, from_tap, to_tap = extent
    centre, inverse, _, length, _ = band
    begin, taps = taps_of(band, FILTER)
    scale = distance_scale(inverse, FILTER)
    distance = (begin - centre + 0.5) * scale
    total, covered = tl.zeros(centre.shape, tl.float32), tl.zeros(centre.shape, tl.float32)
    for k in range(taps):
        tap = begin + k
        inside = tap.to(tl.uint32) < length.to(tl.uint32)
        weight = filter_weights(distance + k * scale, inside, inverse, FILTER).to(DOT).to(tl.float32)
        total += weight
        covered += tl.where((tap >= from_tap) & (tap < to_tap), weight, 0.0)
    return total, covered


launch = Launcher(resample_kernel)


def constants(
    source: Side, device: torch.device, shared: dict[str, Any], *, few_taps: bool, shrinks: bool, long_planes: bool
) -> dict[str, Any]:
    """The kernel's own specialisation constants and launch options.

    Args:
        source: how the sources lie in memory.
        device: of the sources.
        shared: the constants of both resample kernels.
        few_taps: as :func:`has_few_taps` says.
        shrinks: whether some box has more rows than its resized box.
        long_planes: whether a source's plane may span 2**31 elements.
    """
    return {
        "WORDS": min(source.address, source.channel, source.row) >= THREAD_COLUMNS.value,
        # A 64-bit multiplication takes several instructions.
        "OFFSETS": tl.int64 if long_planes else tl.uint32,
        "RUN": _run(shared),
        # It gains by PTX alone. Triton's interpreter takes the same way, to test it.
        "HALF": few_taps and (is_nvidia(device) or device.type == "cpu"),
        "TH": TILE[0],
        "TW": TILE[1],
        "TILES": TILES if shrinks else 1,
        **LAUNCH,
        **(REGISTERS if is_nvidia(device) else {}),
    }


def _run(shared: dict[str, Any]) -> int:
    """How many neighbours of a row a thread stores at once: at least the two that the MMA layout gives it."""
    if shared["TARGET_PLANAR"]:
        return int(min(max(shared["TARGET_ALIGNED"], 2), 8))
    return int(max(shared["GROUP"], 2))


def has_few_taps(table: ImageTable, interpolation: str) -> bool:
    """Whether at most ``MAX_HALF_TAPS`` source rows contribute to an output row."""
    if interpolation == "nearest":
        return True
    reach = 2 if interpolation == "bicubic" else 1
    return math.ceil(2 * max(table.largest_scale, 1.0) * reach) <= MAX_HALF_TAPS
