"""What becomes of a pass's values before they are stored: the device's half of ``Epilogue``.

A kernel holds a tile of one image as a tuple of float32 tensors, one a channel, and calls::

    values = apply_epilogue(values, n, pixels, y, x, first_row, last_row, program, previous, affine, erase, seeds)
    if statistics is not None:
        add_statistics(values, inside, whole, n, statistics, RANGES)
    tl.store(..., rounded(values[c], out.dtype.element_ty), inside)

with the arguments that :func:`epilogue_arguments` returns. What ``Epilogue`` does not ask for is None, which costs
nothing in the compiled kernel. A kernel that loads its values from memory calls ``load_parameters`` before it uses
them, and ``apply_loaded`` after, so that both loads overlap.

``program``: this part's operations (N, S, 2), of which each image's end with ``END``, and S. ``previous`` and
``statistics``: seven numbers of each image (N, 7); see ``add_statistics``. ``affine``: scale and bias of each channel.
``erase``: boxes (N, 4), scale and bias of each channel; ``seeds`` (N,) if the box is filled with noise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from fastload.kernels.spec import ColourProgram, Epilogue, Op
from fastload.kernels.triton.colour_ops import (
    blend,
    grayscale,
    grey,
    invert,
    posterize,
    saturate,
    solarize,
    stretch,
    turn_hue,
)
from fastload.kernels.triton.noise import normal
from fastload.kernels.upload import upload

__all__ = [
    "add_statistics",
    "apply_epilogue",
    "apply_loaded",
    "epilogue_arguments",
    "in_box",
    "load_parameters",
    "overlaps",
    "rounded",
]

BRIGHTNESS = tl.constexpr(int(Op.BRIGHTNESS))
SATURATION = tl.constexpr(int(Op.SATURATION))
HUE = tl.constexpr(int(Op.HUE))
GRAYSCALE = tl.constexpr(int(Op.GRAYSCALE))
SOLARIZE = tl.constexpr(int(Op.SOLARIZE))
POSTERIZE = tl.constexpr(int(Op.POSTERIZE))
INVERT = tl.constexpr(int(Op.INVERT))
CONTRAST = tl.constexpr(int(Op.CONTRAST))
AUTOCONTRAST = tl.constexpr(int(Op.AUTOCONTRAST))

END = tl.constexpr(-1)  # the code behind an image's last operation

STATISTICS = tl.constexpr(7)  # numbers of an image: the sum of grey, three least values, three greatest
FIXED = tl.constexpr(2.0**32)  # what stands for 1 in them; they are int64
NEVER_LEAST = tl.constexpr(2.0)  # above all values


@triton.jit
def apply_epilogue(values, n, pixels, y, x, first_row, last_row, program, previous, affine, erase, seeds):
    """Values of image ``n``, which has ``pixels``, at rows ``y`` and columns ``x``: coloured, normalised and erased.

    ``y`` and ``x`` broadcast to the tile's shape; ``first_row`` and ``last_row`` are scalars that enclose ``y``. They
    are only looked at where something is erased.
    """
    loaded = load_parameters(n, pixels, first_row, last_row, program, previous, erase)
    return apply_loaded(values, loaded, n, y, x, program, previous, affine, erase, seeds)


@triton.jit
def load_parameters(n, pixels, first_row, last_row, program, previous, erase):
    """Of image ``n``: its first operation's code and amount, its mean of grey; and whether these rows are erased."""
    code, amount, mean, erased = 0, 0.0, 0.0, False
    if program is not None:
        ops, slots = program
        ops += n * slots * 2
        code, amount = tl.load(ops).to(tl.int32), tl.load(ops + 1)
    if erase is not None:
        erased = overlaps(erase[0] + 4 * n, first_row, last_row)
    if previous is not None:  # noqa: SIM102  (known when the kernel is compiled, and the next when it runs)
        if code == CONTRAST:
            mean = _statistic(previous, n, 0) / pixels
    return code, amount, mean, erased


@triton.jit
def apply_loaded(values, loaded, n, y, x, program, previous, affine, erase, seeds):
    """What :func:`apply_epilogue` does, with what :func:`load_parameters` returned."""
    code, amount, mean, erased = loaded
    if program is not None:
        values = _coloured(values, code, amount, mean, n, program, previous)
    if affine is not None:
        values = _normalized(values, affine)
    if erase is not None:  # noqa: SIM102  (known when the kernel is compiled, and the next when it runs)
        if erased:
            values = _erased(values, n, y, x, erase, seeds)
    return values


@triton.jit
def rounded(value, DTYPE: tl.constexpr):
    """As it is stored: 0 to 1 as 0 to 255 if that is in uint8."""
    if DTYPE == tl.uint8:  # noqa: SIM300  (capitals make a constant of it)
        value = tl.floor(tl.minimum(tl.maximum(value * 255, 0.0), 255.0) + 0.5)
    return value.to(DTYPE)


@triton.jit
def _normalized(values, affine):
    scale, bias = affine
    out = ()
    for c in tl.static_range(len(values)):
        out += (values[c] * scale[c] + bias[c],)
    return out


# Colour operations


@triton.jit
def _coloured(values, code, amount, mean, n, program, previous):
    """An operation is read while the one before it is done."""
    ops, slots = program
    ops += n * slots * 2
    while code != END:
        ops += 2
        next_code, next_amount = tl.load(ops).to(tl.int32), tl.load(ops + 1)
        values = _operated(values, code, amount, mean, n, previous)
        code, amount = next_code, next_amount
    return values


@triton.jit
def _operated(values, code, amount, mean, n, previous):
    """One operation. Its code is the whole program's, so that the branches do not diverge."""
    if (code == CONTRAST) | (code == BRIGHTNESS):
        values = blend(values, amount, tl.where(code == CONTRAST, mean * (1 - amount), 0.0))
    elif code == SATURATION:
        values = saturate(values, amount)
    elif code == HUE:
        values = turn_hue(values, amount)
    elif code == GRAYSCALE:
        values = grayscale(values)
    elif code == SOLARIZE:
        values = solarize(values, amount)
    elif code == POSTERIZE:
        values = posterize(values, amount)
    elif code == INVERT:
        values = invert(values)
    if previous is not None:  # noqa: SIM102  (known when the kernel is compiled, and the next when it runs)
        if code == AUTOCONTRAST:
            least, greatest = _extremes(previous, n, len(values))
            values = stretch(values, least, greatest)
    return values


@triton.jit
def _extremes(previous, n, C: tl.constexpr):
    """Each channel's least value in image ``n``, and each one's greatest."""
    least, greatest = (), ()
    for c in tl.static_range(C):
        least += (_statistic(previous, n, 1 + c),)  # type: ignore[assignment]
        greatest += (-_statistic(previous, n, 4 + c),)  # type: ignore[assignment]
    return least, greatest


# Statistics


@triton.jit
def add_statistics(values, inside, whole, n, statistics, RANGES: tl.constexpr):
    """Those of a tile: the sum of grey; with ``RANGES`` also each channel's least value, and its greatest one, negated.

    They are whole numbers, whose sum does not depend on the order, so that runs repeat bit for bit. ``whole`` says that
    all of the tile is inside.
    """
    statistics += n * STATISTICS
    total = grey(values)
    if not whole:
        total = tl.where(inside, total, 0.0)
    tl.atomic_add(statistics, (tl.sum(total) * FIXED).to(tl.int64), sem="relaxed")
    if RANGES:
        for c in tl.static_range(len(values)):
            least = tl.min(tl.where(inside, values[c], NEVER_LEAST))
            greatest = tl.min(tl.where(inside, -values[c], NEVER_LEAST))
            tl.atomic_min(statistics + 1 + c, (least * FIXED).to(tl.int64), sem="relaxed")
            tl.atomic_min(statistics + 4 + c, (greatest * FIXED).to(tl.int64), sem="relaxed")


@triton.jit
def _statistic(previous, n, number: tl.constexpr):
    return tl.load(previous + n * STATISTICS + number).to(tl.float32) / FIXED


# Boxes and noise


@triton.jit
def overlaps(box, first_row, last_row):
    """Whether a box, 4 numbers at a pointer, has any of these rows."""
    top = tl.load(box)
    return (first_row < top + tl.load(box + 2)) & (last_row >= top)


@triton.jit
def in_box(box, y, x):
    """Which pixels lie in a box, 4 numbers at a pointer."""
    top, left = tl.load(box), tl.load(box + 1)
    rows = (y >= top) & (y < top + tl.load(box + 2))
    return rows & (x >= left) & (x < left + tl.load(box + 3))


@triton.jit
def _erased(values, n, y, x, erase, seeds):
    boxes, scale, bias = erase
    hit = in_box(boxes + 4 * n, y, x)
    out = ()
    if seeds is None:
        for c in tl.static_range(len(values)):
            out += (tl.where(hit, bias[c], values[c]),)
    else:
        noise = normal(tl.load(seeds + n), y, x, len(values))
        for c in tl.static_range(len(values)):
            out += (tl.where(hit, bias[c] + scale[c] * noise[c], values[c]),)
    return out


# The host's side


def epilogue_arguments(
    epilogue: Epilogue, images: int, device: torch.device, *others: torch.Tensor
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """What the device's half takes, by name, and ``others`` on the device: all in one upload."""
    program, erase = epilogue.program, epilogue.erase
    ops = [] if program is None else _part(program, epilogue.part)
    noisy = erase is not None and any(erase.scale)
    boxes = [] if erase is None else [erase.boxes, *([erase.seeds] if noisy else [])]
    empty = [_no_statistics(images)] if epilogue.statistics else []
    moved = upload(device, *ops, *boxes, *empty, *others)
    on_device = iter(moved)
    return {
        "program": (next(on_device), ops[0].shape[1]) if ops else None,
        "previous": epilogue.previous,
        "affine": None if epilogue.scale is None else (epilogue.scale, epilogue.bias),
        "erase": None if erase is None else (next(on_device), erase.scale, erase.bias),
        "seeds": next(on_device) if noisy else None,
        "statistics": next(on_device) if empty else None,
        "RANGES": bool(empty) and program is not None and bool((program.ops.numpy()[..., 0] == Op.AUTOCONTRAST).any()),
    }, list(on_device)


def _part(program: ColourProgram, part: int) -> list[torch.Tensor]:
    """The operations of one part, and behind each image's at least one that is ``END``; none if there are none."""
    ops, bounds = program.ops.numpy(), program.bounds.numpy()
    start, stop = bounds[:, part, None], bounds[:, part + 1, None]
    longest = int((stop - start).max(initial=0))
    if longest == 0:
        return []
    slots = start + np.arange(longest + 1)
    last = np.minimum(slots, ops.shape[1] - 1)
    chosen = ops[np.arange(len(ops))[:, None], last]
    chosen[slots >= stop] = END.value
    return [torch.from_numpy(chosen)]


def _no_statistics(images: int) -> torch.Tensor:
    """What tiles' are added to."""
    empty = np.full((images, STATISTICS.value), int(NEVER_LEAST.value * FIXED.value))
    empty[:, 0] = 0
    return torch.from_numpy(empty)
