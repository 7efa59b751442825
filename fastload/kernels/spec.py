"""Parameters of the image kernels: colour operations, erased boxes, mixing, and the epilogue that runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import numpy as np
import torch

__all__ = ["END", "FIRST_WITH_STATISTICS", "ColourProgram", "Epilogue", "Erase", "Mix", "Op"]


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


END = max(Op) + 1  # the code that ends an image's list of operations for the kernels
FIRST_WITH_STATISTICS = float(Op.CONTRAST)  # NumPy takes 4 µs to see that an enumeration's member is a number


@dataclass(frozen=True)
class ColourProgram:
    """A list of colour operations for each image, in parts that run in one pass each.

    >>> program = ColourProgram(torch.tensor([[[Op.INVERT, 0.0], [Op.CONTRAST, 0.5]]]))
    >>> program.parts, program.of(0, part=1)
    (2, [(9.0, 0.5)])

    A new part begins at each operation that needs statistics: the pass before it computes them. So such an operation is
    the first of its part, and part 0 has none.

    Attributes:
        ops: float32 (N, S, 2) on the CPU: S rows (code, amount) for each image; see :class:`Op`.
    """

    ops: torch.Tensor

    @cached_property
    def parts(self) -> int:
        """How many parts the image with most has, at least one."""
        # NumPy is fastest along the images.
        needs_statistics = np.ascontiguousarray(self.ops.numpy()[..., 0].T) >= FIRST_WITH_STATISTICS
        return 1 + int(np.add.reduce(needs_statistics, dtype=np.int32).max(initial=0))

    @cached_property
    def ended(self) -> torch.Tensor:
        """``ops`` with ``END`` behind each image's, float32 (N, S + 1, 2), as the kernels read them."""
        images, slots = self.ops.shape[:2]
        rows = np.empty((images, slots + 1, 2), dtype=np.float32)
        rows[:, :slots] = self.ops.numpy()
        rows[:, slots] = END, 0
        return torch.from_numpy(rows)

    def of(self, image: int, part: int) -> list[tuple[float, float]]:
        """The codes and amounts of an image's operations in a part."""
        operations, number = [], 0
        for code, amount in self.ops[image].tolist():
            number += code >= FIRST_WITH_STATISTICS
            if number == part:
                operations.append((code, amount))
        return operations

    def needs_statistics(self, part: int) -> bool:
        """Whether an image has an operation in this part that does."""
        return 0 < part < self.parts

    def is_empty(self, part: int) -> bool:
        """Whether no image has an operation in this part."""
        if part > 0:
            return part >= self.parts
        return bool((self.ops.numpy()[:, :1, 0] >= FIRST_WITH_STATISTICS).all())


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
