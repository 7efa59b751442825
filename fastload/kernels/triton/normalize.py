"""Flips and normalises uint8 images in one pass over memory.

``_groups_kernel`` is the fast one. A thread holds a group of neighbouring pixels: 8 bytes of output for each channel,
so four pixels of bfloat16, two of float32. It loads the group as C words and stores it as C words of 8 bytes, whatever
the memory formats of input and output. So every access is wide, and neighbouring threads access neighbouring words. To
flip, it loads the mirrored group and reverses its pixels.

``_pixels_kernel`` takes images whose rows do not divide into aligned groups. A thread holds one pixel.

docs/notes/normalize-kernel.md lists alternatives that were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from fastload.kernels.common import affine

__all__ = ["flip_normalize"]

WORD_OUT = 8  # bytes of an output word
WARPS = 4
GRID_ROWS = 65_535  # images in a launch: CUDA's limit for the grid's second axis


@triton.jit
def _groups_kernel(
    images,  # words of P bytes; strides count words
    out,  # words of 8 bytes
    flip,
    scale,
    bias,
    row_groups,  # groups in a row
    image_groups,  # groups in an image
    stride_n,
    stride_c,
    stride_y,
    C: tl.constexpr,
    P: tl.constexpr,  # pixels in a group, which is also values in an output word
    DTYPE: tl.constexpr,
    LAST_IN: tl.constexpr,  # whether the images are channels last
    LAST_OUT: tl.constexpr,  # whether the output is
    FLIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(1)
    group = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = group < image_groups
    y = group // row_groups
    x = group - y * row_groups
    mirrored = False
    if FLIP:
        mirrored = tl.load(flip + n)
        x = tl.where(mirrored, row_groups - 1 - x, x)

    source = images + n.to(tl.int64) * stride_n + y * stride_y + x * (C if LAST_IN else 1)
    read = ()
    for c in tl.static_range(C):
        word = tl.load(source + c * (1 if LAST_IN else stride_c), inside, 0).to(tl.int32)
        read += (tl.where(mirrored, _reversed(word, P), word) if FLIP and not LAST_IN else word,)  # type: ignore[assignment]

    bits: tl.constexpr = 64 // P
    written = ()
    for w in tl.static_range(C):
        values = tl.zeros((BLOCK,), tl.int64)
        for i in tl.static_range(P):
            value = _value(read, scale, bias, mirrored, w * P + i, C, P, LAST_IN, LAST_OUT, FLIP).to(DTYPE)
            value = value.to(tl.uint32 if bits == 32 else tl.uint16, bitcast=True)
            values |= value.to(tl.int64) << (i * bits)
        written += (values,)  # type: ignore[assignment]

    out += n.to(tl.int64) * image_groups * C
    for w in tl.static_range(C):
        target = group * C + w if LAST_OUT else group + w * image_groups
        tl.store(out + target, written[w], inside)


@triton.jit
def _reversed(word, P: tl.constexpr):
    """Reverse the order of the ``P`` bytes in each word."""
    if P == 2:
        return (word << 8) | (word >> 8)
    return (word << 24) | ((word & 0xFF00) << 8) | ((word >> 8) & 0xFF00) | ((word >> 24) & 0xFF)


@triton.jit
def _value(
    read,
    scale,
    bias,
    mirrored,
    J: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    LAST_IN: tl.constexpr,
    LAST_OUT: tl.constexpr,
    FLIP: tl.constexpr,
):
    """The normalised value at index ``J`` of each group's output: channel ``c`` of pixel ``k``."""
    k: tl.constexpr = J // C if LAST_OUT else J % P
    c: tl.constexpr = J % C if LAST_OUT else J // P
    if LAST_IN:
        here: tl.constexpr = k * C + c
        there: tl.constexpr = (P - 1 - k) * C + c
        byte = read[here // P] >> (8 * (here % P))
        if FLIP:
            byte = tl.where(mirrored, read[there // P] >> (8 * (there % P)), byte)
    else:
        byte = read[c] >> (8 * k)
    return (byte & 0xFF).to(tl.float32) * scale[c] + bias[c]


@triton.jit
def _pixels_kernel(
    images,
    out,
    flip,
    scale,
    bias,
    row,  # pixels in a row
    image,  # pixels in an image
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    C: tl.constexpr,
    LAST_OUT: tl.constexpr,
    FLIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(1)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < image
    y = pixel // row
    x = pixel - y * row
    if FLIP:
        x = tl.where(tl.load(flip + n), row - 1 - x, x)
    source = images + n.to(tl.int64) * stride_n + y * stride_y + x * stride_x
    values = ()
    for c in tl.static_range(C):
        values += (tl.load(source + c * stride_c, inside, 0).to(tl.float32) * scale[c] + bias[c],)  # type: ignore[assignment]
    out += n.to(tl.int64) * image * C
    for c in tl.static_range(C):
        target = pixel * C + c if LAST_OUT else pixel + image * c
        tl.store(out + target, values[c].to(out.dtype.element_ty), inside)


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
    out = torch.empty(images.shape, dtype=dtype, device=images.device, memory_format=memory_format)
    if out.numel() == 0:
        return out
    scale, bias = (tuple(values) for values in affine(mean, std))
    for start in range(0, len(images), GRID_ROWS):
        part = slice(start, start + GRID_ROWS)
        _launch(images[part], out[part], None if flip is None else flip[part], scale, bias)
    return out


def _launch(
    images: torch.Tensor,
    out: torch.Tensor,
    flip: torch.Tensor | None,
    scale: tuple[float, ...],
    bias: tuple[float, ...],
) -> None:
    n, channels, height, width = images.shape
    options: dict[str, Any] = {
        "C": channels,
        "LAST_OUT": not out.is_contiguous(),
        "FLIP": flip is not None,
        # One group for each thread; with two, channels last is much slower.
        "BLOCK": 32 * WARPS,
        "num_warps": WARPS,
    }
    group = WORD_OUT // out.itemsize
    layout = _group_layout(images, group)
    if layout is None:
        grid = (triton.cdiv(height * width, options["BLOCK"]), n)
        _pixels_kernel[grid](images, out, flip, scale, bias, width, height * width, *images.stride(), **options)
        return
    grid = (triton.cdiv(height * width // group, options["BLOCK"]), n)
    _groups_kernel[grid](
        triton.reinterpret(images, WORDS_IN[group]),
        triton.reinterpret(out, tl.int64),
        flip,
        scale,
        bias,
        width // group,
        height * width // group,
        *(stride // group for stride in images.stride()[:3]),
        P=group,
        DTYPE=FLOATS[out.dtype],
        LAST_IN=layout is torch.channels_last,
        **options,
    )


WORDS_IN = {2: tl.uint16, 4: tl.int32}
FLOATS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _group_layout(images: torch.Tensor, group: int) -> torch.memory_format | None:
    """The images' memory format, if each group can be loaded as aligned words; else None."""
    n, c, y, x = images.stride()
    if images.shape[3] % group or n % group or y % group or images.data_ptr() % group:
        return None
    if x == 1 and c % group == 0:
        return torch.contiguous_format
    if c == 1 and x == images.shape[1]:
        return torch.channels_last
    return None
