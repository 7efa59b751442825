"""Flip and normalise uint8 images in one pass over memory.

The fast kernel works on quads: four neighbouring pixels of a row. Each thread reads a quad's C channels as C words of four
bytes and writes its 4 C values as words of eight, whichever way channels lie in memory on either side; a mirrored quad is
the same words with their bytes taken backwards. So every access is wide, and neighbouring threads write neighbouring
words. docs/kernels.md has the alternatives that were measured. Rows that cannot be cut into quads take the second kernel,
a pixel a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from fastload.kernels import reference

__all__ = ["flip_normalize"]

QUAD = 4  # pixels; written out in the kernels, which take no globals
WARPS = 4


@triton.jit
def _quads_kernel(  # type: ignore[no-untyped-def]
    images,  # int32: four bytes a word; strides are in words
    out,  # int64: eight bytes a word
    flip,
    scale,
    bias,
    row_quads,
    image_quads,
    tiles,
    stride_n,
    stride_c,
    stride_y,
    C: tl.constexpr,
    DTYPE: tl.constexpr,
    VALUES: tl.constexpr,  # in an output word
    LAST_IN: tl.constexpr,  # channels last
    LAST_OUT: tl.constexpr,
    FLIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0) // tiles
    quad = tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)
    inside = quad < image_quads
    y = quad // row_quads
    x = quad - y * row_quads
    mirrored = False
    if FLIP:
        mirrored = tl.load(flip + n)
        x = tl.where(mirrored, row_quads - 1 - x, x)

    source = images + n.to(tl.int64) * stride_n + y * stride_y + x * (C if LAST_IN else 1)
    words = ()
    for c in tl.static_range(C):
        words += (tl.load(source + c * (1 if LAST_IN else stride_c), inside, 0),)

    bits: tl.constexpr = 64 // VALUES
    words_out: tl.constexpr = 4 * C // VALUES  # for each quad
    per_plane: tl.constexpr = 4 // VALUES
    out += n.to(tl.int64) * image_quads * words_out
    for w in tl.static_range(words_out):
        packed = tl.zeros((BLOCK,), tl.int64)
        for i in tl.static_range(VALUES):
            value = _value(words, scale, bias, mirrored, w * VALUES + i, C, LAST_IN, LAST_OUT, FLIP).to(DTYPE)
            value = value.to(tl.uint32 if bits == 32 else tl.uint16, bitcast=True)
            packed |= value.to(tl.int64) << (i * bits)
        if LAST_OUT:
            target = out + quad * words_out + w
        else:
            target = out + (image_quads * (w // per_plane) + quad) * per_plane + w % per_plane
        tl.store(target, packed, inside)


@triton.jit
def _value(  # type: ignore[no-untyped-def]
    words,
    scale,
    bias,
    mirrored,
    J: tl.constexpr,
    C: tl.constexpr,
    LAST_IN: tl.constexpr,
    LAST_OUT: tl.constexpr,
    FLIP: tl.constexpr,
):
    """The value that comes ``J``-th in the output of each quad: channel ``c`` of pixel ``k``."""
    k: tl.constexpr = J // C if LAST_OUT else J % 4
    c: tl.constexpr = J % C if LAST_OUT else J // 4
    if LAST_IN:
        here: tl.constexpr = k * C + c
        there: tl.constexpr = (3 - k) * C + c
        byte = words[here // 4] >> (8 * (here % 4))
        if FLIP:
            byte = tl.where(mirrored, words[there // 4] >> (8 * (there % 4)), byte)
    elif FLIP:
        byte = words[c] >> tl.where(mirrored, 8 * (3 - k), 8 * k)
    else:
        byte = words[c] >> (8 * k)
    return (byte & 0xFF).to(tl.float32) * scale[c] + bias[c]


@triton.jit
def _pixels_kernel(  # type: ignore[no-untyped-def]
    images,
    out,
    flip,
    scale,
    bias,
    row,
    image,
    tiles,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    C: tl.constexpr,
    LAST_OUT: tl.constexpr,
    FLIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0) // tiles
    pixel = tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < image
    y = pixel // row
    x = pixel - y * row
    if FLIP:
        x = tl.where(tl.load(flip + n), row - 1 - x, x)
    source = images + n.to(tl.int64) * stride_n + y * stride_y + x * stride_x
    out += n.to(tl.int64) * image * C
    for c in tl.static_range(C):
        value = tl.load(source + c * stride_c, inside, 0).to(tl.float32) * scale[c] + bias[c]
        target = pixel * C + c if LAST_OUT else pixel + image * c
        tl.store(out + target, value.to(out.dtype.element_ty), inside)


def flip_normalize(
    images: torch.Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    flip: torch.Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:
    """See :func:`fastload.kernels.flip_normalize`."""
    n, channels, height, width = images.shape
    out = torch.empty(images.shape, dtype=dtype, device=images.device, memory_format=memory_format)
    if out.numel() == 0:
        return out
    scale, bias = (tuple(values) for values in reference.affine(mean, std))
    options: dict[str, Any] = {
        "C": channels,
        "LAST_OUT": memory_format is torch.channels_last,
        "FLIP": flip is not None,
        # Without a flip, neighbouring quads are contiguous, and Triton would give a thread two of them: slower writes.
        "BLOCK": 128 if flip is None else 256,
        "num_warps": WARPS,
    }
    layout = _quad_layout(images)
    if layout is None:
        tiles = triton.cdiv(height * width, options["BLOCK"])
        _pixels_kernel[(n * tiles,)](
            images, out, flip, scale, bias, width, height * width, tiles, *images.stride(), **options
        )
        return out
    quads = height * width // QUAD
    tiles = triton.cdiv(quads, options["BLOCK"])
    _quads_kernel[(n * tiles,)](
        triton.reinterpret(images, tl.int32),
        triton.reinterpret(out, tl.int64),
        flip,
        scale,
        bias,
        width // QUAD,
        quads,
        tiles,
        *(stride // QUAD for stride in images.stride()[:3]),
        DTYPE=TRITON_TYPES[dtype],
        VALUES=8 // dtype.itemsize,
        LAST_IN=layout is torch.channels_last,
        **options,
    )
    return out


TRITON_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _quad_layout(images: torch.Tensor) -> torch.memory_format | None:
    """How the channels of quads lie that can be read as aligned words; None if they cannot."""
    n, c, y, x = images.stride()
    if images.shape[3] % QUAD or n % QUAD or y % QUAD or images.data_ptr() % QUAD:
        return None
    if x == 1 and c % QUAD == 0:
        return torch.contiguous_format
    if c == 1 and x == images.shape[1]:
        return torch.channels_last
    return None
