"""``draws``: whether a transform draws random numbers from its key."""

from __future__ import annotations

from typing import Any

from fastload.transforms.compose import Compose
from fastload.transforms.crop import CenterCrop
from fastload.transforms.decode import DecodeJpeg
from fastload.transforms.foreign import Photometric
from fastload.transforms.multi_view import MultiView
from fastload.transforms.normalize import Normalize
from fastload.transforms.random_apply import RandomApply
from fastload.transforms.resize import Resize
from fastload.transforms.transform import Transform
from fastload.transforms.with_probability import WithProbability

__all__ = ["draws"]

NEVER = (CenterCrop, DecodeJpeg, Normalize, Photometric, Resize)


def draws(transform: Any) -> bool:
    """Whether the results of ``transform`` depend on the key; a user's function has none.

    >>> from fastload.transforms import Grayscale, RandomHorizontalFlip
    >>> draws(Compose([Grayscale()])), draws(Compose([Grayscale(), RandomHorizontalFlip()]))
    (False, True)
    """
    if isinstance(transform, Compose):
        return any(map(draws, transform.transforms))
    if isinstance(transform, MultiView):
        return any(map(draws, transform.transforms))
    if isinstance(transform, RandomApply):
        return transform.p > 0 and (transform.p < 1 or any(map(draws, transform.transforms)))
    if isinstance(transform, WithProbability):
        return 0 < transform.p < 1
    return isinstance(transform, Transform) and not isinstance(transform, NEVER)
