"""Parameters of the image kernels: colour operations, erased boxes, mixing, and the epilogue that runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, lru_cache

import numpy as np
import torch

__all__ = ["END", "ColourProgram", "Epilogue", "Erase", "Mix", "Op"]

WIDTH = 4  # of a part's list of operations, or a multiple of it
END = -1  # the code that ends an image's list of operations
END_ROW = np.array([END, 0], dtype=np.float32).view(np.int64)[0]


class Op(IntEnum):
    """Codes of torchvision v2's colour operations, on values from 0 to 1.

    A program holds each operation as a row (code, amount). The comment beside a code says what ``amount`` means.
    Operations below ``CONTRAST`` are pointwise. ``CONTRAST`` and those above also need statistics of the whole image.
    """

    NONE = 0  # leaves the image as it is
    BRIGHTNESS = 1  # factor
    SATURATION = 2  # factor
    HUE = 3  # turns of the colour wheel, -0.5 to 0.5
    GRAYSCALE = 4  # none
    SOLARIZE = 5  # threshold, 0 to 1
    POSTERIZE = 6  # bits, 0 to 8
    POSTERIZE_BYTES = 7  # the same, for images of bytes: the values are rounded to k / 255 before
    INVERT = 8  # none
    CONTRAST = 9  # factor; needs the mean of the grey image
    AUTOCONTRAST = 10  # greatest span of a channel that stays as it is; needs each channel's minimum and maximum


@dataclass(frozen=True)
class ColourProgram:
    """A list of colour operations for each image, split into parts that run in one pass each.

    A new part begins before each operation that needs statistics: the pass before it computes them. So such an
    operation is the first of its part, and part 0 has none.

    Attributes:
        ops: float32 (N, S, 2) on the CPU: for each image, up to S rows (code, amount); see :class:`Op`.
        bounds: int32 (N, P + 1) on the CPU: part p of image n is ``ops[n, bounds[n, p]:bounds[n, p + 1]]``.
    """

    ops: torch.Tensor
    bounds: torch.Tensor

    @cached_property
    def parts(self) -> list[torch.Tensor]:
        """Each part's operations, float32 (N, L, 2): behind each image's stands ``END``.

        L is 1 if there are none, else a multiple of ``WIDTH``, so that batches have parameters of few shapes.
        """
        ops, bounds = self.ops.numpy(), self.bounds.numpy().T.astype(np.int64, order="C")
        starts, stops = bounds[:-1, None], bounds[1:, None]
        longest = (stops - starts).max(axis=(1, 2), initial=0).tolist()
        images, slots = ops.shape[:2]
        # NumPy is fastest along the images, and on all parts at once. Code and amount are moved as one number.
        every = np.full((slots + 1, images), END_ROW)
        every[:slots] = np.ascontiguousarray(ops).view(np.int64)[..., 0].T
        slot = starts + _slots(max(longest, default=0))
        place = np.where(slot < stops, slot, slots)
        place *= images
        place += np.arange(images)
        rows = np.ascontiguousarray(every.ravel().take(place).swapaxes(1, 2))
        parts = torch.from_numpy(rows[..., None].view(np.float32)).unbind()
        return [part if length else part[:, :1].contiguous() for part, length in zip(parts, longest, strict=True)]


@lru_cache(maxsize=16)
def _slots(longest: int) -> np.ndarray:
    """Places in a part's list, (L, 1), for so many operations and ``END``."""
    return np.arange(-(-(longest + 1) // WIDTH) * WIDTH if longest else 1)[:, None]


@dataclass(frozen=True)
class Erase:
    """Overwrites a box of each image with ``bias[c] + scale[c] * noise``, after normalising.

    ``noise`` is standard normal, from Philox4x32-10. It is only drawn if some ``scale`` is not 0.

    Attributes:
        boxes: int32 (N, 4) on the CPU, in pixels: top, left, height, width; height 0 erases nothing.
        seeds: int64 (N,) on the CPU: each image's Philox key.
        scale: standard deviation of the noise, a number for each channel.
        bias: mean of the noise, a number for each channel.
    """

    boxes: torch.Tensor
    seeds: torch.Tensor
    scale: tuple[float, ...]
    bias: tuple[float, ...]


@dataclass(frozen=True)
class Mix:
    """Mixes each image with another of its batch: ``w * image + (1 - w) * partner``, after normalising and erasing.

    This is mixup if the box is empty, and CutMix if w is 0 inside of the box and 1 outside.

    Attributes:
        partners: int32 (N,) on the CPU: index of each image's partner in the batch.
        boxes: int32 (N, 4) on the CPU, in pixels: top, left, height, width.
        inside: float32 (N,) on the CPU: w inside of the box.
        outside: float32 (N,) on the CPU: w outside of the box.
    """

    partners: torch.Tensor
    boxes: torch.Tensor
    inside: torch.Tensor
    outside: torch.Tensor


@dataclass
class Epilogue:
    """Kernel epilogue: colour, normalise, erase, mix, round. It runs on values from 0 to 1 before they are stored.

    1. Colour: part ``part`` of ``program``. Its operations clamp to 0 and 1 as torchvision's do.
    2. Normalise: ``x * scale[c] + bias[c]`` for each channel c, if ``scale`` and ``bias`` are given.
    3. Erase, then mix.
    4. Round to ``dtype``. uint8 stores 255 x, clamped to 0 and 255, rounded to the nearest integer.

    Attributes:
        dtype: of the output: uint8, float16, bfloat16 or float32.
        memory_format: of the output: ``torch.contiguous_format`` or ``torch.channels_last``.
        scale: a number for each channel, or None for no normalisation.
        bias: likewise; given if and only if ``scale`` is.
        program: colour operations, or None.
        part: which part of ``program`` to run.
        statistics: whether the pass also returns the statistics that the next part needs, taken after step 1.
        previous: statistics that the pass before returned, for the operation of this part that needs them.
        erase: boxes to overwrite, or None.
        mix: images to mix, or None.
        following: the epilogues of the passes that are run right after this one, whose parameters are copied to the
            device along with this one's.
        moved: parameters that an earlier pass has copied to the device along with its own, by name.
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
    following: Sequence[Epilogue] = ()
    moved: dict[str, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)
