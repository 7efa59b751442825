"""Kernel epilogue: colour, normalise, erase, round; and statistics for the next pass. See ``spec.Epilogue``.

A kernel holds a tile of one image as a tuple of float32 tensors, one for each channel, and calls::

    values = apply_epilogue(values, n, pixels, y, x, first_row, last_row, program, previous, affine, erase, seeds)
    if statistics is not None:
        add_statistics(values, inside, whole, n, statistics, RANGES)
    tl.store(..., rounded(values[c], out.dtype.element_ty), inside)

with the arguments that :func:`epilogue_arguments` returns. An argument is None where the epilogue has no such step;
Triton then compiles that step out. A kernel that loads its values from memory calls ``load_parameters`` before it uses
them, and ``apply_loaded`` after, so that the latencies of both loads overlap.

- ``program``: pointer to the operations of all parts, float32 (N, S, 2), each image's last one ``END``; S; and the
  part, if it is not the first.
- ``previous``, ``statistics``: pointers to statistics, int64 (N, 7); see ``add_statistics``.
- ``affine``: scale and bias of each channel.
- ``erase``: pointer to boxes, int32 (N, 4); scale and bias of each channel.
- ``seeds``: pointer to int64 (N,), if erased boxes are filled with noise.

Mixing is left to the kernel of ``colour``, which holds both images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from fastload.kernels import spec
from fastload.kernels.parameters import upload_parameters
from fastload.kernels.spec import Epilogue, Op
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

__all__ = [
    "add_statistics",
    "apply_epilogue",
    "apply_loaded",
    "box_overlaps_rows",
    "epilogue_arguments",
    "in_box",
    "load_parameters",
    "rounded",
]

BRIGHTNESS = tl.constexpr(int(Op.BRIGHTNESS))
SATURATION = tl.constexpr(int(Op.SATURATION))
HUE = tl.constexpr(int(Op.HUE))
GRAYSCALE = tl.constexpr(int(Op.GRAYSCALE))
SOLARIZE = tl.constexpr(int(Op.SOLARIZE))
POSTERIZE = tl.constexpr(int(Op.POSTERIZE))
POSTERIZE_BYTES = tl.constexpr(int(Op.POSTERIZE_BYTES))
INVERT = tl.constexpr(int(Op.INVERT))
CONTRAST = tl.constexpr(int(Op.CONTRAST))
AUTOCONTRAST = tl.constexpr(int(Op.AUTOCONTRAST))
END = tl.constexpr(spec.END)

STATISTICS = tl.constexpr(7)  # of an image: sum of grey, three minima, three negated maxima
FIXED_POINT_ONE = tl.constexpr(2.0**32)  # statistics are int64 in fixed point; this is 1.0
FARTHEST = tl.constexpr(2**33)  # ``MIN_IDENTITY`` in fixed point
MIN_IDENTITY = tl.constexpr(2.0)  # above every value; minima are stored less it, so that all statistics begin at 0

MIX = ("partners", "mix_boxes", "inside", "outside")  # what the kernel of ``colour`` reads to mix


@triton.jit
def apply_epilogue(values, n, pixels, y, x, first_row, last_row, program, previous, affine, erase, seeds):
    """Colour, normalise and erase a tile of image ``n``, which has ``pixels`` pixels.

    ``y`` and ``x`` are the tile's rows and columns; they broadcast to the tile's shape. ``first_row`` and ``last_row``
    are scalars that bound ``y``. These four are only used if ``erase`` is given.
    """
    loaded = load_parameters(n, pixels, first_row, last_row, program, previous, erase)
    return apply_loaded(values, loaded, n, y, x, program, previous, affine, erase, seeds)


@triton.jit
def load_parameters(n, pixels, first_row, last_row, program, previous, erase):
    """Load image ``n``'s first operation and grey mean, and whether its box overlaps these rows.

    The operation is its place, counted over all images, its code and its amount.
    """
    place, code, amount, mean, erased = 0, 0, 0.0, 0.0, False
    if program is not None:
        place = _first_of_part(program, n)
        code, amount = _load_operation(program, place)
    if erase is not None:
        erased = box_overlaps_rows(erase[0] + 4 * n, first_row, last_row)
    if previous is not None:  # noqa: SIM102  (a compile-time condition; the next is one at run time)
        if code == CONTRAST:
            mean = _statistic(previous, n, 0) / pixels
    return place, code, amount, mean, erased


@triton.jit
def apply_loaded(values, loaded, n, y, x, program, previous, affine, erase, seeds):
    """:func:`apply_epilogue`, given what :func:`load_parameters` returned."""
    place, code, amount, mean, erased = loaded
    if program is not None:
        values = _apply_program(values, place, code, amount, mean, n, program, previous)
    if affine is not None:
        values = _normalized(values, affine)
    if erase is not None:  # noqa: SIM102  (a compile-time condition; the next is one at run time)
        if erased:
            values = _erased(values, n, y, x, erase, seeds)
    return values


@triton.jit
def rounded(value, DTYPE: tl.constexpr):
    """Convert to the stored dtype; uint8 stores 255 x, clamped and rounded to nearest."""
    if DTYPE == tl.uint8:  # noqa: SIM300  (no constant, though in capitals)
        value = tl.minimum(tl.maximum(value * 255, 0.0), 255.0) + 0.5  # the conversion cuts off the rest
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
def _apply_program(values, place, code, amount, mean, n, program, previous):
    """Run the image's operations of this part. Each is loaded while the one before it is computed."""
    runs = code < CONTRAST
    if len(program) > 2:  # a later part begins with an operation that needs statistics
        runs = code != END
    while runs:
        place += 1
        next_code, next_amount = _load_operation(program, place)
        values = _apply_op(values, code, amount, mean, n, previous)
        code, amount = next_code, next_amount
        runs = code < CONTRAST
    return values


@triton.jit
def _first_of_part(program, n):
    """The place of image ``n``'s first operation in this part; that of ``END`` if it has none there."""
    place = n * program[1]
    if len(program) > 2:
        place, code, found = place - 1, 0, 0
        while (found < program[2]) & (code != END):
            place += 1
            code, _ = _load_operation(program, place)
            found += (code >= CONTRAST).to(tl.int32)
    return place


@triton.jit
def _load_operation(program, place):
    """An operation's code and amount."""
    ops = program[0] + 2 * place
    return tl.load(ops).to(tl.int32), tl.load(ops + 1)


@triton.jit
def _apply_op(values, code, amount, mean, n, previous):
    """Apply one operation. All threads of the Triton program have the same code, so branches do not diverge."""
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
    elif (code == POSTERIZE) | (code == POSTERIZE_BYTES):
        values = posterize(values, amount, code == POSTERIZE_BYTES)
    elif code == INVERT:
        values = invert(values)
    if previous is not None:  # noqa: SIM102  (a compile-time condition; the next is one at run time)
        if code == AUTOCONTRAST:
            least, greatest = _extremes(previous, n, len(values))
            values = stretch(values, least, greatest, amount)
    return values


@triton.jit
def _extremes(previous, n, C: tl.constexpr):
    """Each channel's minimum in image ``n``, and each channel's maximum."""
    least, greatest = (), ()
    for c in tl.static_range(C):
        least += (_statistic(previous, n, 1 + c),)  # type: ignore[assignment]
        greatest += (-_statistic(previous, n, 4 + c),)  # type: ignore[assignment]
    return least, greatest


# Statistics


@triton.jit
def add_statistics(values, inside, whole, n, statistics, RANGES: tl.constexpr):
    """Add a tile to its image's statistics: the sum of grey; with ``RANGES`` also each channel's minimum and maximum.

    Maxima are stored negated, so that they are minima too. Statistics are fixed-point integers: the result of integer
    atomics does not depend on their order, so runs repeat bit for bit. ``whole``: all of the tile lies in the image.
    """
    statistics += n * STATISTICS
    total = grey(values)
    if not whole:
        total = tl.where(inside, total, 0.0)
    tl.atomic_add(statistics, (tl.sum(total) * FIXED_POINT_ONE).to(tl.int64), sem="relaxed")
    if RANGES:
        for c in tl.static_range(len(values)):
            least = tl.min(tl.where(inside, values[c], MIN_IDENTITY))
            greatest = tl.min(tl.where(inside, -values[c], MIN_IDENTITY))
            tl.atomic_min(statistics + 1 + c, _stored_minimum(least), sem="relaxed")
            tl.atomic_min(statistics + 4 + c, _stored_minimum(greatest), sem="relaxed")


@triton.jit
def _stored_minimum(value):
    return (value * FIXED_POINT_ONE).to(tl.int64) - FARTHEST


@triton.jit
def _statistic(previous, n, number: tl.constexpr):
    stored = tl.load(previous + n * STATISTICS + number)
    if number > 0:
        stored += FARTHEST
    return stored.to(tl.float32) / FIXED_POINT_ONE


# Boxes and noise


@triton.jit
def box_overlaps_rows(box, first_row, last_row):
    """Whether a box (top, left, height, width at a pointer) overlaps the rows ``first_row`` to ``last_row``."""
    top = tl.load(box)
    return (first_row < top + tl.load(box + 2)) & (last_row >= top)


@triton.jit
def in_box(box, y, x):
    """Mask of the pixels that lie in a box (top, left, height, width at a pointer)."""
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


# Host code


def epilogue_arguments(
    epilogue: Epilogue, images: int, device: torch.device, *others: torch.Tensor
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Upload the epilogue's tensors and the tensors ``others``, in one transfer with those of the passes that follow.

    Returns:
        The epilogue's kernel arguments by name, and ``others`` on the device. ``mix`` is there if it mixes.
    """
    own, rest = _on_device(epilogue, images, device, others)
    program, erase, mix = epilogue.program, epilogue.erase, epilogue.mix
    return {
        "program": _program(own["ops"], epilogue.part) if "ops" in own else None,
        "previous": epilogue.previous,
        "affine": None if epilogue.scale is None else (epilogue.scale, epilogue.bias),
        "erase": None if erase is None else (own["boxes"], erase.scale, erase.bias),
        "seeds": own.get("seeds"),
        "statistics": own.get("statistics"),
        "RANGES": epilogue.statistics
        and program is not None
        and bool((program.ops.numpy()[..., 0] == float(Op.AUTOCONTRAST)).any()),
        **({} if mix is None else {"mix": tuple(own[name] for name in MIX)}),
    }, rest


def _program(ops: torch.Tensor, part: int) -> tuple[Any, ...]:
    return (ops, ops.shape[1], part) if part else (ops, ops.shape[1])


def _on_device(
    epilogue: Epilogue, images: int, device: torch.device, others: Sequence[torch.Tensor]
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """The epilogue's own parameters, which a pass before may have copied along, and ``others``."""
    own = epilogue.moved.copy()
    epilogue.moved.clear()  # their memory is used again after this pass
    if own:
        return own, upload_parameters(device, *others)
    passes = [epilogue, *epilogue.following]
    named = [_parameters(each, images) for each in passes]
    # Passes share their program, which is copied once.
    tensors = list({id(tensor): tensor for each in named for tensor in each.values()}.values())
    copies = upload_parameters(device, *tensors, *others)
    on_device = {id(tensor): copy for tensor, copy in zip(tensors, copies, strict=False)}
    own, *later = ({name: on_device[id(tensor)] for name, tensor in each.items()} for each in named)
    for following, moved in zip(epilogue.following, later, strict=True):
        following.moved.update(moved)
    return own, copies[len(tensors) :]


def _parameters(epilogue: Epilogue, images: int) -> dict[str, torch.Tensor]:
    """The tensors on the CPU that a pass with this epilogue reads, and the zeros to which it adds its statistics."""
    program, erase, mix = epilogue.program, epilogue.erase, epilogue.mix
    parameters: dict[str, torch.Tensor] = {}
    if program is not None and not program.is_empty(epilogue.part):
        parameters["ops"] = program.ended
    if erase is not None:
        parameters["boxes"] = erase.boxes
        if any(erase.scale):
            parameters["seeds"] = erase.seeds
    if epilogue.statistics:
        parameters["statistics"] = torch.from_numpy(np.zeros((images, STATISTICS.value), dtype=np.int64))
    if mix is not None:
        parameters |= zip(MIX, (mix.partners, mix.boxes, mix.inside, mix.outside), strict=True)
    return parameters
