"""What colour operations are asked for, by the form of the images' values.

Values of bytes are k / 255, with rounding errors: those of a resampled area of one level differ by some millionths, in
float16 by a thousandth. An operation with a step must not stand at such a value.
"""

from __future__ import annotations

import numpy as np
import torch

from fastload.kernels.spec import Op
from fastload.transforms.lazy import LazyImages

__all__ = ["flat_span", "posterize_op", "solarize_threshold"]

HALF_LEVEL = 0.5 / 255
SMALLEST_SPAN = 2.0**-16  # of a channel of floats that is no rounding error of a resampling in float32


def flat_span(work: LazyImages) -> float:
    """The greatest span of a channel that autocontrast takes for flat."""
    least = HALF_LEVEL if work.are_bytes else SMALLEST_SPAN
    return max(least, torch.finfo(work.store).eps)


def posterize_op(work: LazyImages) -> Op:
    """The operation that keeps the highest bits of bytes, or rounds floats down to as many levels."""
    return Op.POSTERIZE_BYTES if work.are_bytes else Op.POSTERIZE


def solarize_threshold(threshold: float | np.ndarray, work: LazyImages) -> np.ndarray:
    """``threshold``, 0 to 1; for bytes, halfway between the least level that it reaches and the one below."""
    thresholds = np.asarray(threshold, dtype=np.float64)
    if not work.are_bytes:
        return thresholds
    levels: np.ndarray = np.ceil((255 * thresholds).astype(np.float32))  # in float32, as torchvision compares
    return (levels - 0.5) / 255
