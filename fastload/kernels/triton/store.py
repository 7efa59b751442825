"""Stores a tile of the output: rounds it to the output's dtype and writes it in wide words where alignment allows.

A kernel holds a tile of one image as a tuple of float32 tensors (TH, TW), one for each channel. It calls ``store`` with
the specialisation constants that :func:`store_constants` returns.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fastload.kernels.triton.device import is_nvidia
from fastload.kernels.triton.epilogue import rounded
from fastload.kernels.triton.table import ADDRESS, CHANNEL, OUTPUT, PIXEL, ROW, Side

__all__ = ["GROUPS", "TYPES", "store", "store_constants", "store_groups"]

TYPES = {torch.uint8: tl.uint8, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
GROUPS = {1: (8, 4), 2: (8, 4, 2), 4: (4, 2)}  # bytes of a value: pixels in a channels-last group
VECTOR_BYTES = 16  # bytes of the widest store of a thread
PAIR_CHANNELS = 3  # channels of 16 bits that ``_store_pairs`` handles


@triton.jit
def store(
    row,  # pointer to the image's row of the table
    values,
    first_y,
    first_x,
    height,
    width,
    TARGET: tl.constexpr,  # dtype of the output
    TARGET_ALIGNED: tl.constexpr,  # all output rows begin at, and have as length, multiples of so many elements
    TARGET_PLANAR: tl.constexpr,  # a row's pixels are contiguous in memory
    GROUP: tl.constexpr,  # channels last: pixels that a thread stores together; 0 if rows do not divide into groups
    PAIRS: tl.constexpr,  # channels last without groups: store pairs of pixels in the MMA layout
    NVIDIA: tl.constexpr,  # inline PTX runs on the device
):
    if GROUP > 0:
        _store_words(row, values, first_y, first_x, height, width, TARGET, GROUP, NVIDIA)
    elif PAIRS:
        _store_pairs(row, values, first_y, first_x, height, width, TARGET)
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
    # Triton only vectorises a store if it can prove that the mask is equal for all values of a word.
    inside = (y < height)[:, None] & (x < width // ALIGNED * ALIGNED)[None, :]
    at = target + y.to(tl.int64)[:, None] * stride_y + x[None, :]
    for c in tl.static_range(len(values)):
        tl.store(at + c * stride_c, rounded(values[c], TARGET), inside)


@triton.jit
def _store_values(row, values, first_y, first_x, height, width, TARGET: tl.constexpr):
    # A one-dimensional index makes neighbouring threads hold neighbouring pixels of a row. With a two-dimensional one
    # Triton would assign them to different rows.
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
def _store_words(
    row,
    values,
    first_y,
    first_x,
    height,
    width,
    TARGET: tl.constexpr,
    GROUP: tl.constexpr,
    NVIDIA: tl.constexpr,
):
    # A one-dimensional index makes neighbouring threads hold neighbouring pixels of a row. With a two-dimensional one
    # Triton would assign them to different rows.
    groups: tl.constexpr = values[0].shape[1] // GROUP
    index = tl.arange(0, values[0].shape[0] * groups)
    y, group = first_y + index // groups, first_x // GROUP + index % groups
    row += OUTPUT
    per_word: tl.constexpr = 32 // TARGET.primitive_bitwidth
    stride_y = tl.load(row + ROW) // per_word
    target = tl.load(row + ADDRESS).to(tl.pointer_type(tl.uint32)) + y.to(tl.int64) * stride_y
    store_groups(target, values, group, tl.where(y < height, width // GROUP, 0), TARGET, GROUP, NVIDIA)


@triton.jit
def store_groups(target, values, group, groups_inside, TARGET: tl.constexpr, GROUP: tl.constexpr, NVIDIA: tl.constexpr):
    """Store groups of ``GROUP`` neighbouring pixels, channels last: C chunks of ``GROUP`` values, one store each.

    Args:
        target: for each group, a pointer to 32-bit words: the start of its output row, aligned to a chunk.
        values: a tensor for each channel, whose groups are numbered left to right, top to bottom.
        group: each group's index in its output row.
        groups_inside: how many groups that row has.
        TARGET: dtype of the output.
        GROUP: one of ``GROUPS``.
        NVIDIA: whether inline PTX runs on the device.
    """
    channels: tl.constexpr = len(values)
    per_word: tl.constexpr = 32 // TARGET.primitive_bitwidth  # values in a word
    chunk_words: tl.constexpr = GROUP // per_word  # words in a chunk
    words: tl.constexpr = channels * chunk_words
    pixels = ()
    for c in tl.static_range(channels):
        pixels += (_split_groups(values[c], GROUP),)  # type: ignore[assignment]
    packed = ()
    for w in tl.static_range(words):
        parts = ()
        for i in tl.static_range(per_word):
            parts += (pixels[(w * per_word + i) % channels][(w * per_word + i) // channels],)  # type: ignore[assignment]
        packed += (_word(parts, TARGET, NVIDIA),)  # type: ignore[assignment]
    at = tl.multiple_of((target + group * words)[:, None], [1, 4 * chunk_words]) + tl.arange(0, chunk_words)
    if channels == 3 and chunk_words == 4:
        _store_sectors(at, packed, group, groups_inside)
    else:
        for w in tl.static_range(0, words, chunk_words):
            tl.store(at + w, _chunk(packed, w, chunk_words), (group < groups_inside)[:, None])


@triton.jit
def _store_sectors(at, words, group, groups_inside):
    """Store three chunks of each group such that two neighbouring threads together fill whole 32-byte sectors.

    A sector is two chunks, and a half-filled sector costs L2 as much as a full one. The six chunks of two neighbours
    are three sectors. The two threads exchange their second chunks, so that each store instruction fills one sector.
    """
    first, second, third = _chunk(words, 0, 4), _chunk(words, 4, 4), _chunk(words, 8, 4)
    pair = tl.reshape(second, (group.shape[0] // 2, 2, 4))
    neighbour_chunk = tl.reshape(pair ^ tl.expand_dims(tl.xor_sum(pair, 1), 1), second.shape)
    right = group % 2
    left_inside, right_inside = group - right < groups_inside, group - right + 1 < groups_inside
    shift = 8 * right[:, None]
    tl.store(at - shift, tl.where(shift == 0, first, neighbour_chunk), left_inside[:, None])
    tl.store(at - shift + 8, tl.where(shift == 0, third, first), (group < groups_inside)[:, None])
    tl.store(at - shift + 16, tl.where(shift == 0, neighbour_chunk, third), right_inside[:, None])


@triton.jit
def _word(values, TARGET: tl.constexpr, NVIDIA: tl.constexpr):
    """Values in the output's dtype as a 32-bit word, the first one lowest."""
    bits: tl.constexpr = TARGET.primitive_bitwidth
    if NVIDIA and bits == 16:
        # The conversion of two numbers has four times the throughput of the conversion of one.
        program: tl.constexpr = PACK_BFLOAT16 if TARGET == tl.bfloat16 else PACK_FLOAT16  # noqa: SIM300  (no constant)
        word = tl.inline_asm_elementwise(program, "=r,f,f", [values[1], values[0]], tl.uint32, is_pure=True, pack=1)
    else:
        word = _to_bits(values[0], TARGET)
        for i in tl.static_range(1, len(values)):
            word |= _to_bits(values[i], TARGET) << (i * bits)
    return word


PACK_BFLOAT16, PACK_FLOAT16 = (tl.constexpr(f"cvt.rn.{kind}.f32 $0, $1, $2;") for kind in ("bf16x2", "f16x2"))


@triton.jit
def _to_bits(value, TARGET: tl.constexpr):
    """The bits of a value in the output's dtype, as uint32."""
    bits: tl.constexpr = TARGET.primitive_bitwidth
    kind: tl.constexpr = tl.uint8 if bits == 8 else tl.uint16 if bits == 16 else tl.uint32
    return rounded(value, TARGET).to(kind, bitcast=True).to(tl.uint32)


@triton.jit
def _split_groups(values, GROUP: tl.constexpr):
    """Split groups into pixels: the groups' first pixels, their second, ...; each (rows, columns / GROUP)."""
    rows: tl.constexpr = values.shape[0]
    groups: tl.constexpr = values.shape[1] // GROUP
    parts = (values,)
    for halving in tl.static_range(3 if GROUP == 8 else 2 if GROUP == 4 else 1):
        halves = ()
        for i in tl.static_range(len(parts)):
            half = tl.reshape(parts[i], (rows, groups, 2, GROUP // 2 ** (halving + 1)))
            halves += tl.split(tl.permute(half, (0, 1, 3, 2)))
        parts = halves  # type: ignore[assignment]
    pixels = ()
    for i in tl.static_range(GROUP):
        pixels += (tl.reshape(parts[i], (rows, groups)),)  # type: ignore[assignment]
    return pixels


@triton.jit
def _chunk(words, first: tl.constexpr, WIDE: tl.constexpr):
    """A chunk of each group: ``WIDE`` words, beginning with word ``first``; (groups, WIDE)."""
    chunk = words[first]
    if WIDE == 2:
        chunk = tl.join(words[first], words[first + 1])
    elif WIDE == 4:
        chunk = tl.join(tl.join(words[first], words[first + 2]), tl.join(words[first + 1], words[first + 3]))
    return tl.reshape(chunk, (words[0].shape[0] * words[0].shape[1], WIDE))


@triton.jit
def _store_pairs(row, values, first_y, first_x, height, width, TARGET: tl.constexpr):
    """Store three channels of 16 bits, channels last, in the MMA layout: a thread's pairs of pixels are three words.

    ``tl.store`` would first convert the layout through shared memory. Inline PTX stores what each thread holds. Triton
    does not document that layout, so the PTX checks it: two neighbouring pixels are stored as words, others value by
    value. Where rows have odd length, half of them begin in the middle of a word; a pair there is a value, two words,
    and a value.
    """
    y, x = first_y + tl.arange(0, values[0].shape[0]), first_x + tl.arange(0, values[0].shape[1])
    row += OUTPUT
    at = tl.load(row + ADDRESS) + (y.to(tl.int64) * tl.load(row + ROW) * 2)[:, None] + (6 * x)[None, :]
    inside = ((y < height)[:, None] & (x < width)[None, :]).to(tl.int32)
    program: tl.constexpr = STORE_BFLOAT16 if TARGET == tl.bfloat16 else STORE_FLOAT16  # noqa: SIM300  (no constant)
    tl.inline_asm_elementwise(
        program,
        "=r,=r,r,r,r,r,r,r,l,l,r,r",
        [values[0], values[1], values[2], at, inside],
        dtype=tl.int32,
        is_pure=False,
        pack=2,
    )


# Two pixels. $2, $4, $6: channels of the first; $3, $5, $7: of the second. $8, $9: their addresses; $10, $11: masks.
# Predicates: both, store three words; between, store value, two words, value; one, other: store a pixel's values.
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
and.b32 place, place, 2;
setp.ne.and.b32 between, place, 0, both;
and.pred both, both, !between;
@both st.global.b32 [$8], first;
@both st.global.b32 [$8 + 4], second;
@both st.global.b32 [$8 + 8], third;
@one st.global.b16 [$8], red;
@one st.global.b16 [$8 + 2], green;
@one st.global.b16 [$8 + 4], blue;
@other st.global.b16 [$9], red_too;
@other st.global.b16 [$9 + 2], green_too;
@other st.global.b16 [$9 + 4], blue_too;
mov.b32 place, {green, blue};
mov.b32 following, {red_too, green_too};
@between st.global.b16 [$8], red;
@between st.global.b32 [$8 + 2], place;
@between st.global.b32 [$8 + 6], following;
@between st.global.b16 [$8 + 10], blue_too;
mov.b32 $0, 0;
mov.b32 $1, 0;
}
"""
STORE_BFLOAT16, STORE_FLOAT16 = (tl.constexpr(STORE_PAIR.replace("TYPE", kind)) for kind in ("bf16x2", "f16x2"))


def store_constants(target: Side, dtype: torch.dtype, channels: int, device: torch.device) -> dict[str, Any]:
    """The specialisation constants of :func:`store`: ``TARGET`` to ``NVIDIA``."""
    itemsize, planar, interleaved = dtype.itemsize, target.layout == "planar", target.is_interleaved
    aligned = min(target.row * itemsize, target.channel * itemsize, target.address, VECTOR_BYTES)
    groups = (group for group in GROUPS[itemsize] if min(target.row, target.address // itemsize) >= group)
    return {
        "TARGET": TYPES[dtype],
        "TARGET_ALIGNED": aligned // itemsize if planar else 1,
        "TARGET_PLANAR": planar,
        "GROUP": next(groups, 0) if interleaved else 0,
        "PAIRS": is_nvidia(device) and interleaved and itemsize == 2 and channels == PAIR_CHANNELS,
        "NVIDIA": is_nvidia(device),
    }
