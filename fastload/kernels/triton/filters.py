"""Position of a program's tile in the output, and the resampling filter along each axis."""

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
    float_entry,
)

__all__ = ["axis_filter", "distance_scale", "filter_weights", "load_window", "tile_of_program"]


@triton.jit
def tile_of_program(first_image, TH: tl.constexpr, TW: tl.constexpr):
    """The program's tile: index of its image, first row, first column."""
    return first_image + tl.program_id(2), tl.program_id(1) * TH, tl.program_id(0) * TW


@triton.jit
def load_window(row, AXIS: tl.constexpr):
    """What :func:`axis_filter` takes of an image's row of the table (a pointer), for one axis."""
    window = row + WINDOW + AXIS
    place = entry(window, START), entry(window, LENGTH), entry(row, HEIGHT + AXIS)
    output = entry(window, VIRTUAL), entry(window, OFFSET), entry(window, FLIP) != 0
    return place, output, float_entry(window, SCALE), float_entry(window, INVERSE)


@triton.jit
def axis_filter(window, at, first, size, TILE: tl.constexpr, FILTER: tl.constexpr):
    """The filter along one axis, for the outputs at positions ``at`` in a tile that begins at ``first``.

    A tap is a pixel of the source box, numbered from the box's start. ``window``: as ``load_window`` returns it.

    Returns:
        The extent: the box's start in the image; the first tap that the tile needs, and the end; the first tap that
        lies in the image, and the end.
        The band: each output's filter centre; 1 / the filter's stretch; its radius; the box's length; and whether each
        output lies in the resized box. Centre and radius are in taps.
    """
    place, output, scale, inverse = window
    start, length, side = place
    virtual, offset, flip = output
    from_tap = tl.maximum(-start, 0)
    to_tap = tl.maximum(from_tap, tl.minimum(length, side - start))
    # Output i is pixel ``direction * i + shift`` of the resized box.
    direction = tl.where(flip, -1, 1)
    shift = tl.where(flip, size - 1, 0) + offset
    position = direction * at + shift

    stretch = tl.maximum(scale, 1.0)
    centre = (position + 0.5) * scale
    support = stretch * (2.0 if FILTER == "bicubic" else 1.0)
    if FILTER == "nearest":
        centre = tl.minimum(tl.floor(position * scale), length - 1.0) + 0.5
        support, inverse = stretch + 1, 1.0

    last = tl.minimum(first + TILE, size) - 1
    begin, end = direction * first + shift, direction * last + shift
    lowest, highest = (
        tl.maximum(tl.minimum(begin, end), 0),
        tl.minimum(tl.maximum(begin, end), virtual - 1),
    )
    low = tl.maximum(((lowest + 0.5) * scale - support + 0.5).to(tl.int32), from_tap)
    high = tl.minimum(((highest + 0.5) * scale + support + 0.5).to(tl.int32), to_tap)
    present = (position >= 0) & (position < virtual)
    return (start, low, high, from_tap, to_tap), (centre, inverse, support, length, present)


@triton.jit
def distance_scale(inverse, FILTER: tl.constexpr):
    """Factor from a distance in taps to the ``distance`` that ``filter_weights`` takes."""
    return inverse * inverse if FILTER == "bilinear" else inverse


@triton.jit
def filter_weights(distance, inside, inverse, FILTER: tl.constexpr):
    """Weights of taps at these distances from the centre, 0 where not ``inside``; an output's add up to about 1.

    The caller divides by their exact sum. ``distance`` was multiplied by ``distance_scale``. All taps are inside if
    ``inside`` is None.
    """
    if FILTER == "bilinear":
        # An addition clamped to 0 and 1 is one instruction.
        height = inverse if inside is None else tl.where(inside, inverse, 0.0)
        weight = tl.minimum(tl.maximum(height - tl.abs(distance), 0.0), 1.0)
    elif FILTER == "bicubic":
        d = tl.abs(distance)
        near = (1.5 * d - 2.5) * d * d + 1
        far = ((2.5 - 0.5 * d) * d - 4) * d + 2
        height = inverse if inside is None else tl.where(inside, inverse, 0.0)
        weight = tl.where(d < 1, near, tl.where(d < 2, far, 0.0)) * height
    else:
        height = 1.0 if inside is None else tl.where(inside, 1.0, 0.0)
        weight = tl.where(distance == 0, height, 0.0)
    return weight
