"""``Takes``: the images for which the device's part of a transform does what the original did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

__all__ = ["COLOURS", "MODES", "WHATEVER", "Takes"]

MODES = ("L", "RGB", "YCbCr", "HSV", "CMYK")  # those whose channels Pillow resizes each alone, as bytes
COLOURS = ("L", "RGB")  # those whose colours Pillow changes without converting them to another mode first


@dataclass(frozen=True)
class Takes:
    """The images for which what moves does the same.

    >>> Takes(modes=("L", "RGB")) & Takes(dtypes=(torch.uint8,))
    Takes(modes=('L', 'RGB'), dtypes=(torch.uint8,), tensors=True, keeps=None)

    Attributes:
        modes: of Pillow images.
        dtypes: of tensors and arrays; None for all.
        tensors: whether tensors of other dtypes than float32, which a conversion of Pillow images leaves as they are.
        keeps: the dtype that images must have because the result is to have theirs; None if what moves converts them.
    """

    modes: tuple[str, ...] = MODES
    dtypes: tuple[torch.dtype, ...] | None = None
    tensors: bool = True
    keeps: torch.dtype | None = None

    def __and__(self, other: Takes) -> Takes:
        modes = tuple(mode for mode in self.modes if mode in other.modes)
        dtypes = other.dtypes if self.dtypes is None else self.dtypes
        if self.dtypes is not None and other.dtypes is not None:
            dtypes = tuple(dtype for dtype in self.dtypes if dtype in other.dtypes)
        return Takes(modes, dtypes, self.tensors and other.tensors, self.keeps or other.keeps)

    @classmethod
    def all_of(cls, several: Iterable[Takes]) -> Takes:
        """The images that each of several takes."""
        taken = cls()
        for each in several:
            taken &= each
        return taken


WHATEVER = Takes()
