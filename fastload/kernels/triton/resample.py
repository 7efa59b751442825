"""Crop, resize, flip and finish images of different sizes in one launch.

This is for bytes in planes, as decoders deliver them; ``resample_any`` is for the rest. A program makes a tile of the
output of all channels, and walks the columns of the source which that tile needs, block by block. Rows are mixed tap by
tap: a tap of all the tile's rows is one read, wide, mostly out of the first cache; and its weights are one vector.
Columns, where neighbours need neighbours, are mixed by a product with a band matrix on tensor cores: its weights are
made from the filter's formula, once for all channels. So flips, offsets and "nearest" are just other weights.

float16 holds the rows' mixture, centred on 0, and the band's weights, by whose rounded sum each output is divided. Few
taps are added up in float16 too, two columns at a time. A byte is then the subnormal number which has its bits, b *
2**-24; weights are 2**15 times as large; and sums begin at minus the middle of the bytes' range.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from fastload.kernels.reference.resample import allocate, check, outputs
from fastload.kernels.triton import resample_any
from fastload.kernels.triton.finish import arguments, finished, statistics, store_statistics
from fastload.kernels.triton.resample_any import _axis, _band, _scale, _weights
from fastload.kernels.triton.store import store
from fastload.kernels.triton.table import ADDRESS, CHANNEL, COLUMNS, HEIGHT, OUTPUT, ROW, WIDTH, entry
from fastload.kernels.work import Finish
from fastload.ragged import Ragged

__all__ = ["resample"]

TILE = (16, 32)  # of the output: rows and columns
BLOCK = 32  # columns of the source that are mixed at a time
STEP = 2  # taps of a column that are read at a time
LAUNCH = {"num_warps": 1, "num_stages": 1}  # one warp waits for no other
HALF_TAPS = 6  # sums of so many are rounded, in float16, by less than a thousandth of full scale
MIDDLE = tl.constexpr(128.0)  # of what a byte can be
HALF_BYTE, HALF_WEIGHT = tl.constexpr(2.0**-24), tl.constexpr(2.0**15)  # what stands for 1 in float16
HALF_MIDDLE = tl.constexpr(-(128.0 * 2.0**-24 * 2.0**15))


@triton.jit
def _resample_kernel(
    table,  # int64, COLUMNS an image
    tiles,
    tiles_x,
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
    ALIGNED: tl.constexpr,
    TARGET: tl.constexpr,  # this and the next four are what ``store`` takes
    TARGET_ALIGNED: tl.constexpr,
    TARGET_PLANAR: tl.constexpr,
    GROUP: tl.constexpr,
    PAIRS: tl.constexpr,
    CONVERT: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
    BW: tl.constexpr,
    STEP: tl.constexpr,
):
    n = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    row = table + n.to(tl.int64) * COLUMNS
    first_y, first_x = tile // tiles_x * TH, tile % tiles_x * TW
    height, width = entry(row, OUTPUT + HEIGHT), entry(row, OUTPUT + WIDTH)
    y, x = first_y + tl.arange(0, TH), first_x + tl.arange(0, TW)
    inside = (y < height)[:, None] & (x < width)[None, :]

    vertical = _axis(row, 0, y, first_y, height, TH, FILTER)
    horizontal = _axis(row, 1, x, first_x, width, TW, FILTER)
    values = _products(row, vertical, horizontal, fill, C, FILTER, PADDED, ALIGNED, CONVERT, TH, TW, BW, STEP)
    last_y = tl.minimum(first_y + TH, height) - 1
    values = finished(
        values, n, height * width, y[:, None], x[None, :], first_y, last_y, program, previous, affine, erase, seeds
    )
    if statistics is not None:
        store_statistics(values, inside, n, tile, statistics, RANGES)
    store(row, values, first_y, first_x, height, width, TARGET, TARGET_ALIGNED, TARGET_PLANAR, GROUP, PAIRS)


@triton.jit
def _products(
    row,
    vertical,
    horizontal,
    fill,
    C: tl.constexpr,
    FILTER: tl.constexpr,
    PADDED: tl.constexpr,
    ALIGNED: tl.constexpr,
    CONVERT: tl.constexpr,
    TH: tl.constexpr,
    TW: tl.constexpr,
    BW: tl.constexpr,
    STEP: tl.constexpr,
):
    """The tile's values from 0 to 1, a tensor for each channel."""
    extent_y, band_y = vertical
    extent_x, band_x = horizontal
    left, low_x, high_x, from_x, to_x = extent_x
    centre_x, inverse_x = band_x[0], band_x[1]

    source = tl.multiple_of(tl.load(row + ADDRESS).to(tl.pointer_type(tl.uint8)), ALIGNED)
    stride_c = tl.multiple_of(tl.load(row + CHANNEL), ALIGNED)
    stride_y = tl.multiple_of(tl.load(row + ROW), ALIGNED)
    last_y = entry(row, HEIGHT) - 1
    first = tl.multiple_of((left + low_x) & -ALIGNED, ALIGNED)
    end = left + high_x
    readable_end = tl.multiple_of((end + ALIGNED - 1) & -ALIGNED, ALIGNED)

    out = ()
    for _ in tl.static_range(C):
        out += (tl.zeros((TH, TW), tl.float32),)  # type: ignore[assignment]
    for block_x in range(first, end, BW):
        column = block_x + tl.arange(0, BW)
        across = _pairwise_band(block_x - left, centre_x, inverse_x, from_x, to_x, FILTER, BW)
        mixed = _mixed(
            source + column,
            column < readable_end,
            stride_c,
            stride_y,
            last_y,
            extent_y,
            band_y,
            C,
            FILTER,
            CONVERT,
            TH,
            BW,
            STEP,
        )
        more = ()
        for c in tl.static_range(C):
            more += (tl.dot(mixed[c], tl.trans(across), out[c]),)  # type: ignore[assignment]
        out = more

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
        values += (out[c] * share + base,)  # type: ignore[assignment]
    return values


@triton.jit
def _pairwise_band(first, centre, inverse, from_tap, to_tap, FILTER: tl.constexpr, BW: tl.constexpr):
    """The band of taps ``first`` to ``first + BW``, made in pairs of neighbours, as tensor cores take them."""
    even = first + 2 * tl.arange(0, BW // 2)
    one = _band(even, first, centre, inverse, from_tap, to_tap, FILTER).to(tl.float16)
    other = _band(even + 1, first, centre, inverse, from_tap, to_tap, FILTER).to(tl.float16)
    return tl.reshape(tl.join(one, other), (centre.shape[0], BW))


@triton.jit
def _taps(band, FILTER: tl.constexpr):
    """Each output's first tap, and how many taps at most have a weight."""
    centre, _, support, _, _ = band
    if FILTER == "nearest":
        begin, taps = (centre - 0.5).to(tl.int32), 1
    else:
        begin, taps = (centre - support + 0.5).to(tl.int32), tl.ceil(2 * support).to(tl.int32)
    return begin, taps


@triton.jit
def _sums(extent, band, FILTER: tl.constexpr, DOT: tl.constexpr):
    """One over the sum of each output's weights; and the share of that sum which lies in the image, not in ``fill``."""
    _, _, _, from_tap, to_tap = extent
    centre, inverse, _, length, present = band
    begin, taps = _taps(band, FILTER)
    total, seen = tl.zeros(centre.shape, tl.float32), tl.zeros(centre.shape, tl.float32)
    for k in range(taps):
        tap = begin + k
        distance = (tap - centre + 0.5) * _scale(inverse, FILTER)
        weight = _weights(distance, (tap >= 0) & (tap < length), inverse, FILTER)
        weight = weight.to(DOT).to(tl.float32)
        total += weight
        seen += tl.where((tap >= from_tap) & (tap < to_tap), weight, 0.0)
    share = tl.where(present, 1 / tl.where(total == 0, 1.0, total), 0.0)
    return share, seen * share


@triton.jit
def _mixed(
    columns,  # of the first row: pointers
    readable,
    stride_c,
    stride_y,
    last_y,
    extent,
    band,
    C: tl.constexpr,
    FILTER: tl.constexpr,
    CONVERT: tl.constexpr,
    TH: tl.constexpr,
    BW: tl.constexpr,
    STEP: tl.constexpr,
):
    """Rows of the source mixed into rows of the output, for a block of columns, less the middle: float16."""
    top, _, _, from_tap, to_tap = extent
    centre, inverse = band[0], band[1]
    begin, taps = _taps(band, FILTER)
    half: tl.constexpr = CONVERT == "half"
    total = tl.zeros((TH,), tl.float32)
    sums = ()
    for _ in tl.static_range(C):
        sums += (tl.full((TH, BW), HALF_MIDDLE, tl.float16) if half else tl.zeros((TH, BW), tl.float32),)  # type: ignore[assignment]
    for step in range(0, taps, STEP):
        blocks, weights = (), ()
        for k in tl.static_range(STEP):
            tap = begin + (step + k)
            # Behind an image's edges, where weights are 0, its edges are read.
            line = tl.minimum(tl.maximum(top + tap, 0), last_y)
            at = columns[None, :] + line.to(tl.int64)[:, None] * stride_y
            for c in tl.static_range(C):
                blocks += (tl.load(at + c * stride_c, readable[None, :]),)  # type: ignore[assignment]
            inside = (tap >= from_tap) & (tap < to_tap)
            distance = (tap - centre + 0.5) * _scale(inverse, FILTER)
            weight = _weights(distance, inside, inverse, FILTER)
            weights += ((weight * HALF_WEIGHT).to(tl.float16) if half else weight,)  # type: ignore[assignment]
        for k in tl.static_range(STEP):
            total += weights[k]
            more = ()
            for c in tl.static_range(C):
                more += (_added(sums[c], weights[k][:, None], blocks[k * C + c], CONVERT),)  # type: ignore[assignment]
            sums = more
    mixed = ()
    for c in tl.static_range(C):
        mixed += (sums[c] if half else (sums[c] - (total * MIDDLE + 0.5)[:, None]).to(tl.float16),)  # type: ignore[assignment]
    return mixed


@triton.jit
def _added(total, weight, block, CONVERT: tl.constexpr):
    if CONVERT == "half":
        weight = tl.broadcast(weight, block)[0]
        total = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 low, high;
            prmt.b32 low, $2, 0, 0x4140;
            prmt.b32 high, $2, 0, 0x4342;
            fma.rn.f16x2 $0, low, $3, $5;
            fma.rn.f16x2 $1, high, $4, $6;
            }
            """,
            "=&r,=&r,r,r,r,r,r",
            [block, weight, total],
            dtype=tl.float16,
            is_pure=True,
            pack=4,
        )
    else:
        total += weight * _value(block, CONVERT)
    return total


@triton.jit
def _value(block, CONVERT: tl.constexpr):
    """128 + byte / 256 in float32, whose bits are 0x4300 and the byte and 00: conversions have a fourth of the rate."""
    if CONVERT == "float":
        value = tl.inline_asm_elementwise(
            """
            prmt.b32 $0, $4, 0x43000000, 0x7404;
            prmt.b32 $1, $4, 0x43000000, 0x7414;
            prmt.b32 $2, $4, 0x43000000, 0x7424;
            prmt.b32 $3, $4, 0x43000000, 0x7434;
            """,
            "=&r,=&r,=&r,=&r,r",
            [block],
            dtype=tl.float32,
            is_pure=True,
            pack=4,
        )
    else:
        value = block.to(tl.float32) * (1 / 256) + 128.0
    return value


def resample(
    images: Ragged,
    windows: torch.Tensor,
    size: tuple[int, int] | torch.Tensor,
    *,
    interpolation: str = "bilinear",
    fill: float = 0.0,
    finish: Finish = Finish(),  # noqa: B008  (it is frozen)
) -> tuple[torch.Tensor | Ragged, torch.Tensor | None]:
    """See :func:`fastload.kernels.resample`."""
    check(images, windows, interpolation, finish)
    if images.dtype is not torch.uint8 or resample_any.layout_of(images.table.numpy(), images.channels) != "planar":
        return resample_any.resample(images, windows, size, interpolation=interpolation, fill=fill, finish=finish)
    outs = allocate(images, size, finish)
    table = torch.from_numpy(np.concatenate([images.table.numpy(), outs.table.numpy(), windows.numpy()], axis=1))
    height, width = outs.sizes.numpy().max(0, initial=0).tolist()
    tiles_x = triton.cdiv(width, TILE[1])
    tiles = triton.cdiv(height, TILE[0]) * tiles_x
    shared, (on_device,) = arguments(finish, images.device, table)
    shared |= statistics(finish, len(images), tiles, images.device)
    if len(images) * tiles:
        options = _variant(images, windows, outs, interpolation)
        _resample_kernel[(len(images) * tiles,)](
            on_device, tiles, tiles_x, fill, **shared, **options, FILTER=interpolation, **LAUNCH
        )
    return outputs(outs), shared["statistics"] and shared["statistics"][0]


def _variant(images: Ragged, windows: torch.Tensor, outs: Ragged, interpolation: str) -> dict[str, Any]:
    """What the kernel is compiled for."""
    options = resample_any.variant_of(images, windows, outs)
    for name in ("SOURCE", "DOT", "LAYOUT"):
        del options[name]
    nvidia = options.pop("NVIDIA")
    tile = {"TH": TILE[0], "TW": TILE[1], "BW": BLOCK, "STEP": STEP}
    if not nvidia:
        return options | tile | {"CONVERT": "plain"}
    convert = "half" if _most_taps(windows, interpolation) <= HALF_TAPS else "float"
    return options | tile | {"CONVERT": convert}


def _most_taps(windows: torch.Tensor, interpolation: str) -> int:
    """How many rows of a source at most are mixed into a row of its output."""
    if interpolation == "nearest":
        return 1
    window = windows.numpy()
    scale = float((window[:, 2] / window[:, 4]).max())
    return math.ceil(2 * max(scale, 1.0) * (2 if interpolation == "bicubic" else 1))
