"""Where a tile of the output lies, and the resampling filter along each of its two axes."""

from __future__ import annotations

import triton
import triton.language as tl

from fastload.kernels.triton.table import (
    FLIP,
    HEIGHT,
    INVERSE,
    LENGTH,
    OFFSET,
    SCALE,
    START,
    VIRTUAL,
    WINDOW,
    entry,
    fraction,
)

__all__ = ["axis_filter", "distance_scale", "filter_weights", "tile_of_program"]


@triton.jit
def tile_of_program(first_image, TH: tl.constexpr, TW: tl.constexpr):
    """Which image's tile the program makes, and the tile's first row and column."""
    return first_image + tl.program_id(2), tl.program_id(1) * TH, tl.program_id(0) * TW


@triton.jit
def axis_filter(row, AXIS: tl.constexpr, at, first, size, TILE: tl.constexpr, FILTER: tl.constexpr):
    """Of outputs ``at`` along one axis: which taps (pixels of the box) they all need of the image; and their filter."""
    window = row + WINDOW + AXIS
    start, length, virtual = entry(window, START), entry(window, LENGTH), entry(window, VIRTUAL)
    from_tap = tl.maximum(-start, 0)
    to_tap = tl.maximum(from_tap, tl.minimum(length, entry(row, HEIGHT + AXIS) - start))
    # Output i is pixel ``side * i + shift`` of the resized box.
    flip = entry(window, FLIP) != 0
    side = tl.where(flip, -1, 1)
    shift = tl.where(flip, size - 1, 0) + entry(window, OFFSET)
    position = side * at + shift

    scale, inverse = fraction(window, SCALE), fraction(window, INVERSE)
    stretch = tl.maximum(scale, 1.0)
    centre = (position + 0.5) * scale
    support = stretch * (2.0 if FILTER == "bicubic" else 1.0)
    if FILTER == "nearest":
        centre = tl.minimum(tl.floor(position * scale), length - 1.0) + 0.5
        support, inverse = stretch + 1, 1.0

    last = tl.minimum(first + TILE, size) - 1
    one, other = side * first + shift, side * last + shift
    least, greatest = tl.maximum(tl.minimum(one, other), 0), tl.minimum(tl.maximum(one, other), virtual - 1)
    low = tl.maximum(((least + 0.5) * scale - support + 0.5).to(tl.int32), from_tap)
    high = tl.minimum(((greatest + 0.5) * scale + support + 0.5).to(tl.int32), to_tap)
    present = (position >= 0) & (position < virtual)
    return (start, low, high, from_tap, to_tap), (centre, inverse, support, length, present)


@triton.jit
def distance_scale(inverse, FILTER: tl.constexpr):
    """What a distance in pixels of the source is multiplied with for ``filter_weights``."""
    return inverse * inverse if FILTER == "bilinear" else inverse


@triton.jit
def filter_weights(distance, inside, inverse, FILTER: tl.constexpr):
    """Of taps at these distances, so that they add up to about 1: exactly is for ``share``."""
    if FILTER == "bilinear":
        # A sum that is bounded to 0 and 1 is one instruction.
        weight = tl.minimum(tl.maximum(tl.where(inside, inverse, -1.0) - tl.abs(distance), 0.0), 1.0)
    elif FILTER == "bicubic":
        d = tl.abs(distance)
        near = (1.5 * d - 2.5) * d * d + 1
        far = ((2.5 - 0.5 * d) * d - 4) * d + 2
        weight = tl.where(d < 1, near, tl.where(d < 2, far, 0.0)) * tl.where(inside, inverse, 0.0)
    else:
        weight = tl.where(distance == 0, tl.where(inside, 1.0, 0.0), 0.0)
    return weight
