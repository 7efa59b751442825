"""Runs the epilogue on images in one pass over memory.

A thread holds a group of neighbouring pixels. It loads each channel of the group as one word. It stores them likewise
if the output is contiguous; with channels last it interleaves them into words, as ``store_groups`` does.

To mix, a program runs the epilogue on an image and its partner and combines them. It does so for several images in
turn: the partner is usually the image before, whose values are still in registers. While it computes one image, it
fetches the next into the L2 cache.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl

from fastload.kernels.common import allocate, check_colour
from fastload.kernels.spec import Epilogue
from fastload.kernels.triton.device import is_nvidia, multiprocessors, pdl_options, wait_for_previous_kernel
from fastload.kernels.triton.epilogue import (
    add_statistics,
    apply_loaded,
    box_overlaps_rows,
    epilogue_arguments,
    in_box,
    load_parameters,
    rounded,
)
from fastload.kernels.triton.launcher import MOST_KINDS, Constants, Launcher
from fastload.kernels.triton.store import GROUPS, TYPES, store_groups
from fastload.structure.ragged import Ragged

__all__ = ["colour"]

PIXELS = 512  # of a program
LAUNCH = {"num_warps": 2}  # eight pixels a thread, which share the loads of the image's parameters
RAGGED_LAUNCH = {"num_warps": 4}
MIX_REGISTERS = {"maxnreg": 96}  # on NVIDIA: almost only the noise spills
MIX_PROGRAMS_PER_SM = 10  # occupancy with MIX_REGISTERS: programs on a multiprocessor
DEFAULT_WALK = 4  # images of a program that mixes, on a device whose occupancy is unknown
# 3 * byte times this is byte / 255, correctly rounded: thresholds are often k / 255. A division is slow.
THIRD_OF_255TH = tl.constexpr(1 / 765)


@triton.jit(do_not_specialize=["walk"])
def _batch_kernel(
    images,
    out,
    count,
    walk,  # images of a program; 1 unless it mixes
    tiles,
    width,
    pixels,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    program,
    previous,
    affine,
    erase,
    seeds,
    mix,  # pointers: partners, boxes, weights inside of the boxes, weights outside
    statistics,
    RANGES: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,  # pixels in a group; a divisor of the width
    DTYPE: tl.constexpr,
    LAST_OUT: tl.constexpr,  # channels last
    COUNT: tl.constexpr,  # groups in a tile
    NVIDIA: tl.constexpr,  # inline PTX runs on the device
    OVERLAPS: tl.constexpr,
):
    wait_for_previous_kernel(OVERLAPS)
    first_image = tl.program_id(0) // tiles * walk
    first = tl.program_id(0) % tiles * COUNT
    row_groups = width // P
    group = first + tl.arange(0, COUNT)
    y = group // row_groups
    x = (group - y * row_groups) * P
    begin = images + y * stride_y + x * stride_x
    y, x = y[:, None], x[:, None] + tl.arange(0, P)[None, :]
    rows = first // row_groups, (first + COUNT - 1) // row_groups
    pixel = group[:, None] * P + tl.arange(0, P)[None, :]
    inside, whole = pixel < pixels, (first + COUNT) * P <= pixels
    source = images + y * stride_y + x * stride_x
    parameters = program, previous, affine, erase, seeds
    if mix is None:
        image = source + first_image.to(tl.int64) * stride_n
        values = _load_and_apply(image, stride_c, inside, first_image, pixels, y, x, rows, parameters, C)
        if statistics is not None:
            add_statistics(values, inside, whole, first_image, statistics, RANGES)
        _write_batch(out, values, first_image, group, pixel, pixels, P, DTYPE, LAST_OUT, NVIDIA)
    else:
        # An iteration loads one image. If the image mixes and its partner is not the image loaded last, it loads the
        # partner, and the next iteration the image.
        partners, boxes, within, around = mix
        n, last = first_image, tl.minimum(first_image + walk, count)
        loaded_image = n - n - 1
        values = ()
        for _ in tl.static_range(C):
            values += (tl.zeros((COUNT, P), tl.float32),)
        while n < last:
            partner = tl.load(partners + n)
            weight_in, weight = tl.load(within + n), tl.load(around + n)
            boxed = box_overlaps_rows(boxes + 4 * n, rows[0], rows[1])
            alone = tl.where(boxed, tl.minimum(weight_in, weight), weight) >= 1
            ready = alone | (partner == loaded_image)
            loaded_image = tl.where(ready, n, partner)
            image = source + loaded_image.to(tl.int64) * stride_n
            previous_values = values
            # The next image is most often the one that is loaded next.
            if NVIDIA and P > 1:  # noqa: SIM102  (a compile-time condition; the next is one at run time)
                if whole & (loaded_image + 1 < count):
                    _prefetch(begin + (loaded_image + 1).to(tl.int64) * stride_n, stride_c, C)
            values = _load_and_apply(image, stride_c, inside, loaded_image, pixels, y, x, rows, parameters, C)
            if ready:
                # A store in each branch: merging the branches' values would cost register moves.
                if alone:
                    _write_batch(out, values, n, group, pixel, pixels, P, DTYPE, LAST_OUT, NVIDIA)
                elif boxed:
                    weights = tl.where(in_box(boxes + 4 * n, y, x), weight_in, weight)
                    mixed = _mixed(values, previous_values, weights)
                    _write_batch(out, mixed, n, group, pixel, pixels, P, DTYPE, LAST_OUT, NVIDIA)
                else:
                    mixed = _mixed(values, previous_values, weight)
                    _write_batch(out, mixed, n, group, pixel, pixels, P, DTYPE, LAST_OUT, NVIDIA)
                n += 1


@triton.jit
def _ragged_kernel(
    images,  # int64 tables, as ``Ragged.table``
    outs,
    tiles,
    program,
    previous,
    affine,
    erase,
    seeds,
    statistics,
    RANGES: tl.constexpr,
    C: tl.constexpr,
    DTYPE_IN: tl.constexpr,
    DTYPE: tl.constexpr,
    LAST_OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_previous_kernel(OVERLAPS)
    n = tl.program_id(0) // tiles
    tile = tl.program_id(0) - n * tiles
    row = images + n * 6
    width = tl.load(row + 2).to(tl.int32)
    pixels = tl.load(row + 1).to(tl.int32) * width
    pixel = tile * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < pixels
    y = pixel // width
    x = pixel - y * width
    rows = tile * BLOCK // width, (tile * BLOCK + BLOCK - 1) // width
    source = tl.load(row).to(tl.pointer_type(DTYPE_IN)) + y * tl.load(row + 4) + x * tl.load(row + 5)
    parameters = program, previous, affine, erase, seeds
    values = _load_and_apply(source, tl.load(row + 3), inside, n, pixels, y, x, rows, parameters, C)
    if statistics is not None:
        add_statistics(values, inside, (tile + 1) * BLOCK <= pixels, n, statistics, RANGES)
    target = tl.load(outs + n * 6).to(tl.pointer_type(DTYPE))
    _write(target, values, pixel, pixels, inside, DTYPE, LAST_OUT)


@triton.jit
def _load_and_apply(source, stride_c, inside, n, pixels, y, x, rows, parameters, C: tl.constexpr):
    """Load a tile of image ``n`` and run the epilogue. All loads are issued before any result is used."""
    program, previous, affine, erase, seeds = parameters
    read = ()
    for c in tl.static_range(C):
        read += (tl.load(source + c * stride_c, inside, 0),)  # type: ignore[assignment]
    loaded = load_parameters(n, pixels, rows[0], rows[1], program, previous, erase)
    values = ()
    for c in tl.static_range(C):
        value = read[c].to(tl.float32)  # type: ignore[var-annotated]
        if source.dtype.element_ty == tl.uint8:
            value = value * 3.0 * THIRD_OF_255TH
        values += (value,)
    return apply_loaded(values, loaded, n, y, x, program, previous, affine, erase, seeds)


@triton.jit
def _prefetch(pointers, stride_c, C: tl.constexpr):
    """Begin to fetch the lines of memory at these pointers into the L2 cache. Unlike a load, it takes no registers."""
    for c in tl.static_range(C):
        address = (pointers + c * stride_c).to(tl.int64)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [address], tl.int32, is_pure=False, pack=1
        )


@triton.jit
def _mixed(values, previous_values, weight):
    out = ()
    for c in tl.static_range(len(values)):
        out += (weight * values[c] + (1 - weight) * previous_values[c],)
    return out


@triton.jit
def _write_batch(
    out,
    values,
    n,
    group,
    pixel,
    pixels,
    P: tl.constexpr,
    DTYPE: tl.constexpr,
    LAST_OUT: tl.constexpr,
    NVIDIA: tl.constexpr,
):
    out += n.to(tl.int64) * pixels * len(values)
    if LAST_OUT and P > 1:
        store_groups(out.to(tl.pointer_type(tl.uint32)), values, group, pixels // P, DTYPE, P, NVIDIA)
    else:
        _write(out, values, pixel, pixels, pixel < pixels, DTYPE, LAST_OUT)


@triton.jit
def _write(image, values, pixel, pixels, inside, DTYPE: tl.constexpr, LAST_OUT: tl.constexpr):
    for c in tl.static_range(len(values)):
        target = pixel * len(values) + c if LAST_OUT else pixel + c * pixels
        tl.store(image + target, rounded(values[c], DTYPE), inside)


_launch_batch, _launch_ragged = Launcher(_batch_kernel), Launcher(_ragged_kernel)


def colour(images: torch.Tensor | Ragged, epilogue: Epilogue) -> tuple[torch.Tensor | Ragged, torch.Tensor | None]:
    """See :func:`fastload.kernels.colour`."""
    check_colour(images, epilogue)
    return _colour_ragged(images, epilogue) if isinstance(images, Ragged) else _colour_batch(images, epilogue)


def _colour_batch(images: torch.Tensor, epilogue: Epilogue) -> tuple[torch.Tensor, torch.Tensor | None]:
    n, channels, height, width = images.shape
    out = torch.empty(images.shape, dtype=epilogue.dtype, device=images.device, memory_format=epilogue.memory_format)
    if out.numel() == 0:
        return out, None
    mix = epilogue.mix
    parameters, _ = epilogue_arguments(epilogue, n, images.device)
    last = not out.is_contiguous()
    group = _group(width, out.itemsize if last else None)
    tiles = -(-(height * width // group) // (PIXELS // group))  # triton.cdiv takes 10 times as long
    walk = 1 if mix is None else _walk(n * tiles, images.device)
    arguments = {
        "images": images,
        "out": out,
        "count": n,
        "walk": walk,
        "tiles": tiles,
        "width": width,
        "pixels": height * width,
        **dict(zip(("stride_n", "stride_c", "stride_y", "stride_x"), images.stride(), strict=True)),
        "mix": None,
        **parameters,
    }
    constants = _batch_constants(channels, group, out.dtype, images.device, last=last, mixes=mix is not None)
    _launch_batch(images.device, (-(-n // walk) * tiles, 1, 1), arguments, constants)
    return out, parameters["statistics"]


@lru_cache(maxsize=MOST_KINDS)
def _batch_constants(
    channels: int, group: int, dtype: torch.dtype, device: torch.device, *, last: bool, mixes: bool
) -> Constants:
    return Constants(
        {
            "C": channels,
            "P": group,
            "DTYPE": TYPES[dtype],
            "LAST_OUT": last,
            "COUNT": PIXELS // group,
            "NVIDIA": is_nvidia(device),
            **LAUNCH,
            **(MIX_REGISTERS if mixes and is_nvidia(device) else {}),
            **pdl_options(device),
        }
    )


def _walk(tiles: int, device: torch.device) -> int:
    """Images of a program that mixes: the fewest with which all programs are resident at once.

    Few programs also save work: each loads its first image's partner, which another program loads too.
    """
    return -(-tiles // (MIX_PROGRAMS_PER_SM * multiprocessors(device))) if is_nvidia(device) else DEFAULT_WALK


def _group(width: int, itemsize: int | None) -> int:
    """Pixels in a group: the most that divide the width; given ``itemsize``, one of ``store.GROUPS``."""
    allowed = (8, 4, 2) if itemsize is None else GROUPS[itemsize]
    return next((group for group in allowed if width % group == 0), 1)


def _colour_ragged(images: Ragged, epilogue: Epilogue) -> tuple[torch.Tensor | Ragged, torch.Tensor | None]:
    outs = allocate(images, images.sizes, epilogue)
    if not len(images):
        return outs, None
    parameters, (table, out_table) = epilogue_arguments(epilogue, len(images), images.device, images.table, outs.table)
    tiles = triton.cdiv(int(images.sizes.prod(1).max()), PIXELS)
    last = epilogue.memory_format is torch.channels_last
    constants = _ragged_constants(images.channels, images.dtype, outs.dtype, images.device, last=last)
    arguments = {"images": table, "outs": out_table, "tiles": tiles, **parameters}
    _launch_ragged(images.device, (len(images) * tiles, 1, 1), arguments, constants)
    return outs, parameters["statistics"]


@lru_cache(maxsize=MOST_KINDS)
def _ragged_constants(
    channels: int, source: torch.dtype, target: torch.dtype, device: torch.device, *, last: bool
) -> Constants:
    return Constants(
        {
            "C": channels,
            "DTYPE_IN": TYPES[source],
            "DTYPE": TYPES[target],
            "LAST_OUT": last,
            "BLOCK": PIXELS,
            **RAGGED_LAUNCH,
            **pdl_options(device),
        }
    )
