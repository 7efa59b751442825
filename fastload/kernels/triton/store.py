"""How a tile of an output is written: plane by plane, or pixels of channels last in words.

A kernel holds a tile of one image as a tuple of float32 tensors (TH, TW), one a channel, and calls ``store`` with the
arguments that :func:`storing` made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from fastload.kernels.triton.finish import rounded
from fastload.kernels.triton.table import ADDRESS, CHANNEL, OUTPUT, PIXEL, ROW
from fastload.ragged import Ragged

__all__ = ["TYPES", "store", "storing"]

TYPES = {torch.uint8: tl.uint8, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
GROUPS = {1: 4, 2: 4, 4: 2}  # pixels of channels last that are stored as words, by bytes of a value
WORD = 16  # bytes that a thread writes at once
PAIRED = 3  # channels, of 16 bits, that are stored as the tensor cores leave them


@triton.jit
def store(
    row,  # of the table
    values,
    first_y,
    first_x,
    height,
    width,
    TARGET: tl.constexpr,  # dtype
    TARGET_ALIGNED: tl.constexpr,  # elements that all rows of outputs begin at, and are long, a multiple of
    TARGET_PLANAR: tl.constexpr,  # pixels of a row are neighbours in memory
    GROUP: tl.constexpr,  # pixels of channels last that are stored as C words; 0 to store each value by itself
    PAIRS: tl.constexpr,  # pairs of pixels of channels last are stored by the threads that hold them
):
    if PAIRS:
        _store_pairs(row, values, first_y, first_x, height, width, TARGET, GROUP > 0)
    elif GROUP > 0:
        _store_words(row, values, first_y, first_x, height, width, TARGET, GROUP)
    elif TARGET_PLANAR:
        _store_planes(row, values, first_y, first_x, height, width, TARGET, TARGET_ALIGNED)
    else:
        _store_values(row, values, first_y, first_x, height, width, TARGET)


@triton.jit
def _store_planes(row, values, first_y, first_x, height, width, TARGET: tl.constexpr, ALIGNED: tl.constexpr):
    y, x = first_y + tl.arange(0, values[0].shape[0]), first_x + tl.arange(0, values[0].shape[1])
    row += OUTPUT
    target = tl.load(row + ADDRESS).to(tl.pointer_type(TARGET))
    target = tl.multiple_of(target, ALIGNED * (TARGET.primitive_bitwidth // 8))
    stride_c = tl.multiple_of(tl.load(row + CHANNEL), ALIGNED)
    stride_y = tl.multiple_of(tl.load(row + ROW), ALIGNED)
    # The mask, too, must be seen to be the same for all values of a word.
    inside = (y < height)[:, None] & (x < width // ALIGNED * ALIGNED)[None, :]
    at = target + y.to(tl.int64)[:, None] * stride_y + x[None, :]
    for c in tl.static_range(len(values)):
        tl.store(at + c * stride_c, rounded(values[c], TARGET), inside)


@triton.jit
def _store_values(row, values, first_y, first_x, height, width, TARGET: tl.constexpr):
    # One index for rows and columns: of two, Triton would let neighbouring threads go down columns.
    columns: tl.constexpr = values[0].shape[1]
    pixels: tl.constexpr = values[0].shape[0] * columns
    pixel = tl.arange(0, pixels)
    y, x = first_y + pixel // columns, first_x + pixel % columns
    row += OUTPUT
    target = tl.load(row + ADDRESS).to(tl.pointer_type(TARGET))
    at = target + y.to(tl.int64) * tl.load(row + ROW) + x * tl.load(row + PIXEL)
    inside = (y < height) & (x < width)
    for c in tl.static_range(len(values)):
        value = tl.reshape(rounded(values[c], TARGET), (pixels,))
        tl.store(at + c * tl.load(row + CHANNEL), value, inside)


@triton.jit
def _store_words(row, values, first_y, first_x, height, width, TARGET: tl.constexpr, GROUP: tl.constexpr):
    """``GROUP`` pixels are C words of as many values, wide enough for memory."""
    channels: tl.constexpr = len(values)
    bits: tl.constexpr = TARGET.primitive_bitwidth
    value_type: tl.constexpr = tl.uint8 if bits == 8 else tl.uint16 if bits == 16 else tl.uint32
    words = ()
    for c in tl.static_range(channels):
        words += (rounded(values[c], TARGET).to(value_type, bitcast=True),)  # type: ignore[assignment]
    words = _paired(words)
    if GROUP == 4:
        words = _paired(words)
    rows: tl.constexpr = values[0].shape[0]
    groups: tl.constexpr = values[0].shape[1] // GROUP
    word = tl.arange(0, rows * groups)
    y, x = first_y + word // groups, first_x // GROUP + word % groups
    row += OUTPUT
    target = tl.load(row + ADDRESS).to(tl.pointer_type(words[0].dtype))
    at = target + y.to(tl.int64) * (tl.load(row + ROW) // GROUP) + x * channels
    inside = (y < height) & (x < width // GROUP)
    for c in tl.static_range(channels):
        tl.store(at + c, tl.reshape(words[c], (rows * groups,)), inside)


@triton.jit
def _paired(words):
    """C tensors of values, a channel each, as C tensors of words twice as wide, half as many, in order of memory."""
    rows: tl.constexpr = words[0].shape[0]
    columns: tl.constexpr = words[0].shape[1] // 2
    bits: tl.constexpr = words[0].dtype.primitive_bitwidth
    wide: tl.constexpr = tl.uint16 if bits == 8 else tl.uint32 if bits == 16 else tl.uint64
    even, odd = (), ()
    for c in tl.static_range(len(words)):
        one, other = tl.split(tl.reshape(words[c], (rows, columns, 2)))
        even += (one.to(wide),)
        odd += (other.to(wide),)
    halves = even + odd
    paired = ()
    for c in tl.static_range(len(words)):
        paired += (halves[2 * c] | (halves[2 * c + 1] << bits),)
    return paired


@triton.jit
def _store_pairs(row, values, first_y, first_x, height, width, TARGET: tl.constexpr, ALIGNED: tl.constexpr):
    """Three channels of 16 bits: a product leaves two neighbours of a row to a thread, and these are three words.

    Triton would bring a tile into another order before it stores, through shared memory. Its order is nowhere promised.
    So what a thread holds is stored as words if it is neighbours, and else value by value. Where a row begins between
    two words, so does each pair: a value, two words, a value.
    """
    y, x = first_y + tl.arange(0, values[0].shape[0]), first_x + tl.arange(0, values[0].shape[1])
    row += OUTPUT
    at = tl.load(row + ADDRESS) + (y.to(tl.int64) * tl.load(row + ROW) * 2)[:, None] + (6 * x)[None, :]
    inside = ((y < height)[:, None] & (x < width)[None, :]).to(tl.int32)
    bfloat16: tl.constexpr = STORE_BFLOAT16 if ALIGNED else STORE_BFLOAT16_ANYWHERE
    float16: tl.constexpr = STORE_FLOAT16 if ALIGNED else STORE_FLOAT16_ANYWHERE
    program: tl.constexpr = bfloat16 if TARGET == tl.bfloat16 else float16  # noqa: SIM300  (a constant's name)
    tl.inline_asm_elementwise(
        program,
        "=r,=r,r,r,r,r,r,r,l,l,r,r",
        [values[0], values[1], values[2], at, inside],
        dtype=tl.int32,
        is_pure=False,
        pack=2,
    )


# Of two pixels: $2 to $7 are their channels, $8 and $9 where they go, $10 and $11 whether they are inside.
STORE_PAIR = """
{
.reg .pred one, other, both, between;
.reg .b32 first, second, third, place, following;
.reg .b16 red, green, blue, red_too, green_too, blue_too;
setp.ne.b32 one, $10, 0;
setp.ne.b32 other, $11, 0;
cvt.u32.u64 place, $8;
cvt.u32.u64 following, $9;
sub.s32 following, following, place;
setp.eq.s32 both, following, 6;
and.pred both, both, one;
and.pred both, both, other;
setp.ne.and.b32 one, $10, 0, !both;
setp.ne.and.b32 other, $11, 0, !both;
cvt.rn.TYPE.f32 first, $4, $2;
cvt.rn.TYPE.f32 second, $3, $6;
cvt.rn.TYPE.f32 third, $7, $5;
mov.b32 {red, green}, first;
mov.b32 {blue, red_too}, second;
mov.b32 {green_too, blue_too}, third;
BETWEEN
@both st.global.b32 [$8], first;
@both st.global.b32 [$8 + 4], second;
@both st.global.b32 [$8 + 8], third;
@one st.global.b16 [$8], red;
@one st.global.b16 [$8 + 2], green;
@one st.global.b16 [$8 + 4], blue;
@other st.global.b16 [$9], red_too;
@other st.global.b16 [$9 + 2], green_too;
@other st.global.b16 [$9 + 4], blue_too;
mov.b32 $0, 0;
mov.b32 $1, 0;
}
"""
STORE_BETWEEN = """
and.b32 place, place, 2;
setp.ne.and.b32 between, place, 0, both;
and.pred both, both, !between;
mov.b32 place, {green, blue};
mov.b32 following, {red_too, green_too};
@between st.global.b16 [$8], red;
@between st.global.b32 [$8 + 2], place;
@between st.global.b32 [$8 + 6], following;
@between st.global.b16 [$8 + 10], blue_too;
"""


def _program(kind: str, between: str = "") -> tl.constexpr:
    return tl.constexpr(STORE_PAIR.replace("TYPE", kind).replace("BETWEEN", between))


STORE_BFLOAT16, STORE_FLOAT16 = _program("bf16x2"), _program("f16x2")
STORE_BFLOAT16_ANYWHERE, STORE_FLOAT16_ANYWHERE = _program("bf16x2", STORE_BETWEEN), _program("f16x2", STORE_BETWEEN)


def storing(outs: Ragged) -> dict[str, Any]:
    """The arguments of :func:`store` from ``TARGET`` on."""
    table = outs.table.numpy()
    planar = bool((table[:, PIXEL.value] == 1).all())
    interleaved = _interleaved(table, outs.channels)
    nvidia = outs.device.type == "cuda" and torch.version.cuda is not None
    return {
        "TARGET": TYPES[outs.dtype],
        "TARGET_ALIGNED": _aligned(table, outs.dtype.itemsize) if planar else 1,
        "TARGET_PLANAR": planar,
        "GROUP": _group(table, outs.dtype.itemsize) if interleaved else 0,
        "PAIRS": nvidia and interleaved and outs.dtype.itemsize == 2 and outs.channels == PAIRED,
    }


def _aligned(table: np.ndarray[Any, Any], itemsize: int) -> int:
    address, _, width, channel, row, _ = table.T
    bits = int(np.bitwise_or.reduce(address | (width | channel | row) * itemsize, initial=WORD))
    return (bits & -bits) // itemsize


def _interleaved(table: np.ndarray[Any, Any], channels: int) -> bool:
    channel, _, pixel = table[:, CHANNEL.value :].T
    return bool(((channel == 1) & (pixel == channels) & (pixel > 1)).all())


def _group(table: np.ndarray[Any, Any], itemsize: int) -> int:
    address, _, width, _, row, _ = table.T
    group = GROUPS[itemsize]
    whole = ((width | row) % group == 0) & (address % (group * itemsize) == 0)
    return group if whole.all() else 0
