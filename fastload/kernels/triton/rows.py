"""Vertical pass of ``resample_planar``: weighted sums of uint8 source rows, as the left operand of a ``tl.dot``.

The quad of threads that holds a row of the MMA operand computes that row. For each tap, each thread loads
``THREAD_COLUMNS`` neighbouring columns, mostly from the L1 cache. The operand's columns are permuted to the order in
which the threads hold them, so no data moves between threads.

Sums become float16 after ``MIDDLE`` is subtracted: values nearer to 0 lose less to rounding. Sums of few taps are also
accumulated in float16, two columns an instruction (``HALF``):

- A byte b is used as it is: zero-extended to 16 bits, it is the subnormal float16 b * 2**-24. No conversion is needed.
- Weights are scaled by 2**15, so that products are normal numbers again.
- Sums start at ``-MIDDLE``, scaled likewise.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastload.kernels.triton.filters import distance_scale, filter_weights

__all__ = ["HALF_BYTE", "HALF_WEIGHT", "MIDDLE", "QUAD", "THREAD_COLUMNS", "filter_rows", "interleave", "taps_of"]

QUAD = tl.constexpr(4)  # threads of a warp that hold a row of an MMA operand or result
THREAD_COLUMNS = tl.constexpr(8)  # source columns of a thread in each block
MIDDLE = tl.constexpr(128.0)  # of the range of a byte; subtracted from bytes before they are rounded to float16
HALF_BYTE, HALF_WEIGHT = tl.constexpr(2.0**-24), tl.constexpr(2.0**15)  # scales of bytes and weights as float16


@triton.jit
def filter_rows(
    first,
    inside,
    view,
    vertical,
    C: tl.constexpr,
    FILTER: tl.constexpr,
    WORDS: tl.constexpr,
    HALF: tl.constexpr,
    NVIDIA: tl.constexpr,
):
    """Filter a block of ``THREAD_COLUMNS * QUAD`` source columns vertically, beginning with column ``first``.

    ``inside``: the first column that lies in the box and in the image, and the end. Others give 0.
    ``view``: pointer to the source's bytes, channel stride, row stride, last row, and the end of the columns needed.
    ``vertical``: what ``axis_filter`` returns for the output's rows, each repeated for ``QUAD`` threads.
    The constants are those of ``resample_kernel``.

    Returns:
        For each channel, float16 (TH, columns): the weighted sums less ``MIDDLE``. The weights are not normalised.
    """
    _, taps = taps_of(vertical[1], FILTER)
    # Taps that every output has: they are loaded together.
    min_taps: tl.constexpr = 1 if FILTER == "nearest" else 2 if FILTER == "bilinear" else 4
    thread = tl.arange(0, vertical[1][0].shape[0])
    column = first + THREAD_COLUMNS * (thread % QUAD)
    sums, total = _accumulate(None, 0.0, 0, min_taps, column, view, vertical, C, FILTER, WORDS, HALF, NVIDIA)
    for tap in range(min_taps, taps):
        sums, total = _accumulate(sums, total, tap, 1, column, view, vertical, C, FILTER, WORDS, HALF, NVIDIA)
    pairs = ()
    for c in tl.static_range(C):
        pairs += (_pairs(sums[c], total, HALF),)  # type: ignore[assignment]
    # Only blocks at the edges have others. Weights would have to be masked in every block.
    if (first < inside[0]) | (first + THREAD_COLUMNS * QUAD > inside[1]):
        pairs = _without_outside(pairs, column, inside)
    filtered = ()
    for c in tl.static_range(C):
        filtered += (_dot_operand(pairs[c]),)  # type: ignore[assignment]
    return filtered


@triton.jit
def taps_of(band, FILTER: tl.constexpr):
    """Each output's first tap, and the maximum number of taps with a weight."""
    centre, _, support, _, _ = band
    if FILTER == "nearest":
        begin, taps = (centre - 0.5).to(tl.int32), 1
    else:
        begin, taps = (centre - support + 0.5).to(tl.int32), tl.ceil(2 * support).to(tl.int32)
    return begin, taps


@triton.jit
def _accumulate(
    sums,  # of each channel; None before the first tap
    total,  # of the weights
    first,
    COUNT: tl.constexpr,
    column,  # each thread's first source column
    view,
    vertical,
    C: tl.constexpr,
    FILTER: tl.constexpr,
    WORDS: tl.constexpr,
    HALF: tl.constexpr,
    NVIDIA: tl.constexpr,
):
    """Add ``COUNT`` taps, beginning with tap ``first``. All loads are issued before any result is used."""
    source, stride_c, stride_y, last_y, end = view
    extent, band = vertical
    top, _, _, from_tap, to_tap = extent
    centre, inverse = band[0], band[1]
    begin, _ = taps_of(band, FILTER)
    begin = tl.maximum(begin, from_tap)
    scale = distance_scale(inverse, FILTER)
    # Columns past the end have weight 0; they load the row's last word again to stay in bounds.
    source += tl.minimum(column, (end - 1) & -THREAD_COLUMNS) if WORDS else column
    distance = (begin - centre + 0.5) * scale
    blocks, weights = (), ()
    for k in tl.static_range(COUNT):
        tap = first + k
        # Rows past the end have weight 0; they load the image's last row to stay in bounds.
        line = tl.minimum(top + begin + tap, last_y)
        at = line.to(stride_y.dtype) * stride_y
        for c in tl.static_range(C):
            blocks += (_load_columns(source + c * stride_c + at, end - column, WORDS),)  # type: ignore[assignment]
        weights += (filter_weights(distance + tap * scale, tap < to_tap - begin, inverse, FILTER),)  # type: ignore[assignment]
    for k in tl.static_range(COUNT):
        total += weights[k]
        next_sums = ()
        for c in tl.static_range(C):
            before = None if sums is None else sums[c]
            next_sums += (_multiply_add(before, weights[k], blocks[k * C + c], HALF, NVIDIA),)  # type: ignore[assignment]
        sums = next_sums
    return sums, total


@triton.jit
def _load_columns(at, count, WORDS: tl.constexpr):
    """Load ``THREAD_COLUMNS`` bytes at each pointer, of which the first ``count`` are needed, as two 32-bit words."""
    if WORDS:
        joined = tl.load(at.to(tl.pointer_type(tl.uint64), bitcast=True))
    else:
        # Unaligned: load the two aligned words that hold the bytes. A word without any needed byte may be out of
        # bounds; then the last word with one is loaded instead.
        address = at.to(tl.int64)
        first, last = address & -THREAD_COLUMNS, (address + count - 1) & -THREAD_COLUMNS
        low = tl.load(tl.minimum(first, last).to(tl.pointer_type(tl.uint64)))
        high = tl.load(tl.minimum(first + THREAD_COLUMNS, last).to(tl.pointer_type(tl.uint64)))
        bits = (address & (THREAD_COLUMNS - 1)).to(tl.uint64) * 8
        joined = low >> bits | high << 1 << (63 - bits)
    return joined.to(tl.uint32), (joined >> 32).to(tl.uint32)


@triton.jit
def _multiply_add(total, weight, words, HALF: tl.constexpr, NVIDIA: tl.constexpr):
    """Multiply-add: ``total + weight * bytes``, for two words of four bytes each.

    Returns:
        For each word four float32; or, if ``HALF``, two pairs of float16, whose ``total`` starts at ``-MIDDLE``.
        ``total`` is None before the first tap.
    """
    out = ()
    for w in tl.static_range(2):
        if HALF:
            pairs = None if total is None else (total[2 * w], total[2 * w + 1])
            out += _add_halves_ptx(pairs, weight, words[w]) if NVIDIA else _add_halves(pairs, weight, words[w])
        else:
            values = _bytes_to_floats(words[w], NVIDIA)
            for k in tl.static_range(4):
                out += (weight * values[k] if total is None else total[4 * w + k] + weight * values[k],)  # type: ignore[assignment]
    return out


@triton.jit
def _add_halves(total, weight, word):
    """What :func:`_add_halves_ptx` does, where inline PTX does not run."""
    factor = weight.to(tl.float16).to(tl.float32) * (HALF_WEIGHT * HALF_BYTE)
    out = ()
    for p in tl.static_range(2):
        pair = tl.zeros(word.shape, tl.uint32)
        for k in tl.static_range(2):
            before = -MIDDLE * HALF_BYTE * HALF_WEIGHT
            if total is not None:
                before = (total[p] >> (16 * k)).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
            half = (before + factor * (word >> (16 * p + 8 * k) & 255).to(tl.float32)).to(tl.float16)
            pair |= half.to(tl.uint16, bitcast=True).to(tl.uint32) << (16 * k)
        out += (pair,)
    return out


@triton.jit
def _add_halves_ptx(total, weight, word):
    """Two pairs of float16 ``total + weight * byte``, of the four bytes of a word."""
    # Two weights at a time: the conversion of two numbers has four times the throughput of the conversion of one.
    weight_pair = tl.inline_asm_elementwise(PAIR_WEIGHTS, "=r,=r,f,f", [weight], tl.uint32, is_pure=True, pack=2)
    if total is None:
        out = tl.inline_asm_elementwise(
            BEGIN_HALVES, "=&r,=&r,r,r", [word, weight_pair], (tl.uint32, tl.uint32), is_pure=True, pack=1
        )
    else:
        operands = [word, weight_pair, total[0], total[1]]
        out = tl.inline_asm_elementwise(
            ADD_HALVES, "=&r,=&r,r,r,r,r", operands, (tl.uint32, tl.uint32), is_pure=True, pack=1
        )
    return out


# $2, $3: weights. $0, $1: for each, the pair of it twice as float16, times HALF_WEIGHT, which is 0x7800.
PAIR_WEIGHTS = tl.constexpr("""
{
.reg .b16 low, high;
.reg .b32 both, scale;
mov.b32 scale, 0x78007800;
cvt.rn.f16x2.f32 both, $3, $2;
mul.rn.f16x2 both, both, scale;
mov.b32 {low, high}, both;
mov.b32 $0, {low, low};
mov.b32 $1, {high, high};
}
""")
# $2: four bytes. $3: a pair of equal float16 weights. $4, $5: the pairs of sums. prmt zero-extends bytes to 16 bits.
ADD_HALVES = tl.constexpr("""
{
.reg .b32 low, high;
prmt.b32 low, $2, 0, 0x4140;
prmt.b32 high, $2, 0, 0x4342;
fma.rn.f16x2 $0, low, $3, $4;
fma.rn.f16x2 $1, high, $3, $5;
}
""")
# As ADD_HALVES, with sums that start at 0xb400, the float16 -(MIDDLE * HALF_BYTE * HALF_WEIGHT).
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
def _bytes_to_floats(word, NVIDIA: tl.constexpr):
    """Convert each byte b of a word to the float32 ``128 + b / 256``, whose bits are 0x4300, b, 00.

    A byte permutation builds it, with four times the throughput of an integer-to-float conversion.
    """
    if NVIDIA:
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
def _pairs(sums, total, HALF: tl.constexpr):
    """A channel's sums less ``MIDDLE`` as four pairs of float16."""
    if HALF:
        pairs = sums
    else:
        middle = total * MIDDLE + 0.5
        pairs = ()
        for k in tl.static_range(0, 8, 2):
            low = (sums[k] - middle).to(tl.float16).to(tl.uint16, bitcast=True)
            high = (sums[k + 1] - middle).to(tl.float16).to(tl.uint16, bitcast=True)
            pairs += (low.to(tl.uint32) | high.to(tl.uint32) << 16,)
    return pairs


@triton.jit
def _without_outside(pairs, column, inside):
    """Each channel's pairs, with zeros for the columns that are not inside; ``column``: each thread's first."""
    masks = ()
    for k in tl.static_range(0, 8, 2):
        low = (column + k >= inside[0]) & (column + k < inside[1])
        high = (column + k + 1 >= inside[0]) & (column + k + 1 < inside[1])
        masks += ((tl.where(low, 0xFFFF, 0) | tl.where(high, 0xFFFF0000, 0)).to(tl.uint32),)
    out = ()
    for c in tl.static_range(len(pairs)):
        kept = ()
        for k in tl.static_range(4):
            kept += (pairs[c][k] & masks[k],)
        out += (kept,)
    return out


@triton.jit
def _dot_operand(pairs):
    """Arrange a channel's pairs as the left operand of ``tl.dot``: float16 (TH, columns)."""
    rows: tl.constexpr = pairs[0].shape[0] // QUAD
    parts = ()
    for k in tl.static_range(4):
        words = ()
        for w in tl.static_range(2):
            half = (pairs[2 * w + k // 2] >> (k % 2 * 16)).to(tl.uint16).to(tl.float16, bitcast=True)
            words += (tl.reshape(half, (rows, QUAD)),)
        joined = tl.permute(tl.join(words[0], words[1]), (0, 2, 1))
        parts += (tl.reshape(joined, (rows, 2 * QUAD)),)
    return interleave(parts)


@triton.jit
def interleave(parts):
    """Interleave the columns of four tensors (rows, columns) into (rows, 4 * columns): 0, 1, 2, 3, 0, 1, ..."""
    joined = tl.join(tl.join(parts[0], parts[2]), tl.join(parts[1], parts[3]))
    return tl.reshape(joined, (parts[0].shape[0], 4 * parts[0].shape[1]))
