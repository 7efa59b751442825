"""``Fill``: what stands outside of an image, in images and in masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from fastload.structure.loaded_types import loaded_types

__all__ = ["Fill", "FillArgument"]

FillArgument = float | Sequence[float] | Mapping[Any, Any] | None  # what a transform takes as ``fill``


@dataclass(frozen=True)
class Fill:
    """The value outside of images, in units of their values, None for none; and outside of masks.

    >>> from torchvision import tv_tensors
    >>> Fill.of({tv_tensors.Mask: 255, "others": 0})
    Fill(images=0.0, masks=255.0)
    >>> Fill.of(7)
    Fill(images=7.0, masks=7.0)
    """

    images: float | None
    masks: float

    @classmethod
    def of(cls, fill: FillArgument) -> Fill:
        """That of an argument ``fill``: a number, or numbers by type as torchvision's: ``{tv_tensors.Mask: 255}``.

        Types that it leaves out have the value of "others", by default None.

        Raises:
            TypeError: it is something else.
            ValueError: a value is several different numbers, one a channel.
        """
        if not isinstance(fill, Mapping):
            value = _number(fill, fill)
            return cls(value, value or 0.0)
        wrong = [key for key in fill if key != "others" and not isinstance(key, type)]
        if wrong:
            raise TypeError(f"fill must have types, such as tv_tensors.Mask, or 'others' for keys; got {wrong[0]!r}")
        images, masks = (
            next((_number(fill[key], fill) for key in (*types, "others") if key in fill), None)
            for types in ((*_types("Image", "Video"), torch.Tensor), _types("Mask"))
        )
        return cls(images, masks or 0.0)

    def __str__(self) -> str:
        same = self.masks == (self.images or 0.0)
        return f"{self.images}" if same else f"{{Mask: {self.masks}, 'others': {self.images}}}"


def _types(*names: str) -> tuple[type, ...]:
    return loaded_types("torchvision.tv_tensors", *names)


def _number(value: Any, fill: Any) -> float | None:
    several = isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) > 0
    values = list(value) if several else [value]
    if value is not None and not all(isinstance(each, Real) and not isinstance(each, bool) for each in values):
        raise TypeError(f"fill must be a number, or numbers by type such as {{tv_tensors.Mask: 255}}; got {fill!r}")
    if any(each != values[0] for each in values):
        raise ValueError(
            f"fill must be one number for all channels; got {fill!r}: give one, such as their mean, or pad in the "
            "workers, with torchvision.transforms.v2"
        )
    return None if value is None else float(values[0])
