"""Rows of bytes mixed into rows of an output, for :mod:`fastload.kernels.triton.resample_planar`.

Four threads share each row of a tile, and of each tap each of them reads ``SHARE`` neighbours, mostly out of the first
cache. The columns of the product that follows are in the order in which threads have them, so that none need give any
away.

What comes of it is float16, centred on 0. Few taps are added up in float16 too, two columns at a time. A byte is then
the subnormal number which has its bits, b * 2**-24; weights are 2**15 times as large; and sums begin at minus the
middle of the bytes' range.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastload.kernels.triton.filters import distance_scale, filter_weights

__all__ = ["HALF_BYTE", "HALF_WEIGHT", "MIDDLE", "QUAD", "SHARE", "mixed_rows", "side_by_side", "taps_of"]

QUAD = tl.constexpr(4)  # threads that hold a row of a product
SHARE = tl.constexpr(8)  # columns of the source that each of them mixes at a time
MIDDLE = tl.constexpr(128.0)  # of what a byte can be
HALF_BYTE, HALF_WEIGHT = tl.constexpr(2.0**-24), tl.constexpr(2.0**15)  # what stands for 1 in float16


@triton.jit
def mixed_rows(
    first, lines, vertical, C: tl.constexpr, FILTER: tl.constexpr, WORDS: tl.constexpr, CONVERT: tl.constexpr
):
    """A block of the source's columns, its rows mixed into those of the output: float16 less the middle, each channel.

    The block begins with column ``first``. ``lines``: a pointer to the source's bytes, its strides of channel and row,
    its last row, and where the columns that matter end. ``vertical``: what ``axis_filter`` returns for the output's
    rows, each repeated for the threads that share it.
    """
    _, taps = taps_of(vertical[1], FILTER)
    least: tl.constexpr = 1 if FILTER == "nearest" else 2 if FILTER == "bilinear" else 4  # taps of every output
    thread = tl.arange(0, vertical[1][0].shape[0])
    column = first + SHARE * (thread % QUAD)
    sums, total = _added(None, 0.0, 0, least, column, lines, vertical, C, FILTER, WORDS, CONVERT)
    for tap in range(least, taps):
        sums, total = _added(sums, total, tap, 1, column, lines, vertical, C, FILTER, WORDS, CONVERT)
    mixed = ()
    for c in tl.static_range(C):
        mixed += (_halves(sums[c], total, CONVERT),)  # type: ignore[assignment]
    return mixed


@triton.jit
def taps_of(band, FILTER: tl.constexpr):
    """Each output's first tap, and how many taps at most have a weight."""
    centre, _, support, _, _ = band
    if FILTER == "nearest":
        begin, taps = (centre - 0.5).to(tl.int32), 1
    else:
        begin, taps = (centre - support + 0.5).to(tl.int32), tl.ceil(2 * support).to(tl.int32)
    return begin, taps


@triton.jit
def _added(
    sums,  # of each channel, or None for nothing yet
    total,  # of the weights
    first,
    COUNT: tl.constexpr,
    column,  # of the source: where each thread's begin
    lines,
    vertical,
    C: tl.constexpr,
    FILTER: tl.constexpr,
    WORDS: tl.constexpr,
    CONVERT: tl.constexpr,
):
    """With ``COUNT`` taps from the ``first`` on, all of which are read before any is waited for."""
    source, stride_c, stride_y, last_y, end = lines
    extent, band = vertical
    top, _, _, from_tap, to_tap = extent
    centre, inverse = band[0], band[1]
    begin, _ = taps_of(band, FILTER)
    scale = distance_scale(inverse, FILTER)
    # Behind a row's last word, where weights are 0, that word is read again.
    source += tl.minimum(column, (end - 1) & -SHARE) if WORDS else column
    distance = (begin - centre + 0.5) * scale
    blocks, weights = (), ()
    for k in tl.static_range(COUNT):
        tap = begin - from_tap + (first + k)
        # Behind an image's edges, where weights are 0, its edges are read.
        line = tl.minimum(tl.maximum(top + from_tap + tap, 0), last_y)
        at = line.to(stride_y.dtype) * stride_y
        for c in tl.static_range(C):
            blocks += (_read(source + c * stride_c + at, end - column, WORDS),)  # type: ignore[assignment]
        inside = tap.to(tl.uint32) < (to_tap - from_tap).to(tl.uint32)
        weights += (filter_weights(distance + (first + k) * scale, inside, inverse, FILTER),)  # type: ignore[assignment]
    for k in tl.static_range(COUNT):
        total += weights[k]
        more = ()
        for c in tl.static_range(C):
            more += (_plus(None if sums is None else sums[c], weights[k], blocks[k * C + c], CONVERT),)  # type: ignore[assignment]
        sums = more
    return sums, total


@triton.jit
def _read(at, count, WORDS: tl.constexpr):
    """``SHARE`` bytes from each pointer on, of which the first ``count`` are wanted: two words of four."""
    if WORDS:
        both = tl.load(at.to(tl.pointer_type(tl.uint64), bitcast=True))
    else:
        # They lie in two aligned words. Of words without any wanted byte, the last that has one is read again.
        address = at.to(tl.int64)
        first, last = address & -SHARE, (address + count - 1) & -SHARE
        low = tl.load(tl.minimum(first, last).to(tl.pointer_type(tl.uint64)))
        high = tl.load(tl.minimum(first + SHARE, last).to(tl.pointer_type(tl.uint64)))
        bits = (address & (SHARE - 1)).to(tl.uint64) * 8
        both = low >> bits | high << 1 << (63 - bits)
    return both.to(tl.uint32), (both >> 32).to(tl.uint32)


@triton.jit
def _plus(total, weight, words, CONVERT: tl.constexpr):
    """``total + weight * bytes``: each word's four float32, or two pairs of float16 that begin at minus the middle."""
    out = ()
    for w in tl.static_range(2):
        if CONVERT == "half":
            pair = None if total is None else (total[2 * w], total[2 * w + 1])
            out += _plus_halves(pair, weight, words[w])
        else:
            values = _values(words[w], CONVERT)
            for k in tl.static_range(4):
                out += (weight * values[k] if total is None else total[4 * w + k] + weight * values[k],)  # type: ignore[assignment]
    return out


@triton.jit
def _plus_halves(total, weight, word):
    # Two numbers rounded at once have four times the rate of one.
    twice = tl.inline_asm_elementwise(
        "cvt.rn.f16x2.f32 $0, $1, $1;", "=r,f", [weight * HALF_WEIGHT], tl.uint32, is_pure=True, pack=1
    )
    if total is None:
        out = tl.inline_asm_elementwise(
            BEGIN_HALVES, "=&r,=&r,r,r", [word, twice], (tl.uint32, tl.uint32), is_pure=True, pack=1
        )
    else:
        operands = [word, twice, total[0], total[1]]
        out = tl.inline_asm_elementwise(
            ADD_HALVES, "=&r,=&r,r,r,r,r", operands, (tl.uint32, tl.uint32), is_pure=True, pack=1
        )
    return out


# Four bytes, $2, times a weight, twice in $3. A byte below a byte of zeros is a float16, as is said at the top.
ADD_HALVES = tl.constexpr("""
{
.reg .b32 low, high;
prmt.b32 low, $2, 0, 0x4140;
prmt.b32 high, $2, 0, 0x4342;
fma.rn.f16x2 $0, low, $3, $4;
fma.rn.f16x2 $1, high, $3, $5;
}
""")
# 0xb400 is -(128 * 2**-24 * 2**15).
BEGIN_HALVES = tl.constexpr("""
{
.reg .b32 low, high, middle;
mov.b32 middle, 0xb400b400;
prmt.b32 low, $2, 0, 0x4140;
prmt.b32 high, $2, 0, 0x4342;
fma.rn.f16x2 $0, low, $3, middle;
fma.rn.f16x2 $1, high, $3, middle;
}
""")


@triton.jit
def _values(word, CONVERT: tl.constexpr):
    """128 + byte / 256 of each of a word's bytes, in float32: its bits are 0x4300, the byte and 00.

    Conversions have a fourth of the rate.
    """
    if CONVERT == "float":
        values = tl.inline_asm_elementwise(
            """
            prmt.b32 $0, $4, 0x43000000, 0x7404;
            prmt.b32 $1, $4, 0x43000000, 0x7414;
            prmt.b32 $2, $4, 0x43000000, 0x7424;
            prmt.b32 $3, $4, 0x43000000, 0x7434;
            """,
            "=&r,=&r,=&r,=&r,r",
            [word],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    else:
        values = ()
        for k in tl.static_range(4):
            values += ((word >> (8 * k) & 255).to(tl.float32) * (1 / 256) + 128.0,)
    return values


@triton.jit
def _halves(sums, total, CONVERT: tl.constexpr):
    """A channel's sums as an operand of the product, (TH, columns), float16."""
    rows: tl.constexpr = sums[0].shape[0] // QUAD
    fours = ()
    for k in tl.static_range(4):
        words = ()
        for w in tl.static_range(2):
            if CONVERT == "half":
                half = (sums[2 * w + k // 2] >> (k % 2 * 16)).to(tl.uint16).to(tl.float16, bitcast=True)
            else:
                half = (sums[4 * w + k] - (total * MIDDLE + 0.5)).to(tl.float16)
            words += (tl.reshape(half, (rows, QUAD)),)  # type: ignore[assignment]
        both = tl.permute(tl.join(words[0], words[1]), (0, 2, 1))  # type: ignore[misc]
        fours += (tl.reshape(both, (rows, 2 * QUAD)),)  # type: ignore[assignment]
    return side_by_side(fours)


@triton.jit
def side_by_side(fours):
    """Of each four columns the first, the second, and so on: all of them, (rows, 4 * columns)."""
    both = tl.join(tl.join(fours[0], fours[2]), tl.join(fours[1], fours[3]))
    return tl.reshape(both, (fours[0].shape[0], 4 * fours[0].shape[1]))
