"""What a pass over memory is asked to do, as the kernels and their references both read it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

__all__ = ["ColourProgram", "Epilogue", "Erase", "Mix", "Op"]


class Op(IntEnum):
    """Colour operations, torchvision v2's, on values from 0 to 1; those below ``CONTRAST`` need nothing but the pixel.

    In a program each is a row (code, amount); what ``amount`` is stands behind it.
    """

    NONE = 0
    BRIGHTNESS = 1  # factor
    SATURATION = 2  # factor
    HUE = 3  # turns of the colour wheel, -0.5 to 0.5
    GRAYSCALE = 4  # none
    SOLARIZE = 5  # threshold, 0 to 1
    POSTERIZE = 6  # bits, 0 to 8
    INVERT = 7  # none
    CONTRAST = 8  # factor; needs the mean of the grey image
    AUTOCONTRAST = 9  # none; needs each channel's least and greatest value


@dataclass(frozen=True)
class ColourProgram:
    """Colour operations, each image's own, cut into parts wherever one needs a statistic of the image before it.

    ``ops``: float32 (N, S, 2) on the CPU, a code and an amount each. ``bounds``: int32 (N, P + 1) on the CPU; part p of
    image n is ``ops[n, bounds[n, p]:bounds[n, p + 1]]``. An operation that needs a statistic comes first in its part,
    and never in part 0.
    """

    ops: torch.Tensor
    bounds: torch.Tensor


@dataclass(frozen=True)
class Erase:
    """A box of each image that is overwritten after normalising, with ``bias[c] + scale[c] * noise``.

    ``boxes``: int32 (N, 4) on the CPU: top, left, height, width; height 0 for none. ``noise`` is standard normal, drawn
    for each value by Philox4x32-10 from ``seeds``, int64 (N,) on the CPU; where every scale is 0 none is drawn.
    """

    boxes: torch.Tensor
    seeds: torch.Tensor
    scale: tuple[float, ...]
    bias: tuple[float, ...]


@dataclass(frozen=True)
class Mix:
    """Each image mixed with its partner, after normalising and erasing: ``w * image + (1 - w) * partner``.

    ``partners``: int32 (N,), on the CPU as all here. ``boxes``: int32 (N, 4): top, left, height, width.
    ``inside``, ``outside``: float32 (N,): w in the box and around it.
    """

    partners: torch.Tensor
    boxes: torch.Tensor
    inside: torch.Tensor
    outside: torch.Tensor


@dataclass(frozen=True)
class Epilogue:
    """What becomes of a pass's values, floats from 0 to 1, before they are stored.

    In this order: part ``part`` of ``program`` (which clamps to 0 and 1 as torchvision does); ``x * scale[c] +
    bias[c]`` for each channel c if given; ``erase``; ``mix``; rounding to ``dtype``, where uint8 means 255 x, clamped
    and rounded to the nearest. ``statistics`` asks for the statistics that the program's next part needs; those which
    part ``part`` itself needs come in as ``previous``, as the pass before returned them.
    """

    dtype: torch.dtype = torch.uint8
    memory_format: torch.memory_format = torch.contiguous_format
    scale: tuple[float, ...] | None = None
    bias: tuple[float, ...] | None = None
    program: ColourProgram | None = None
    part: int = 0
    statistics: bool = False
    previous: torch.Tensor | None = None
    erase: Erase | None = None
    mix: Mix | None = None
