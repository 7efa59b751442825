"""``is_for_each_image``: whether several views of the images can share a transform's call."""

from __future__ import annotations

from typing import Any

from fastload.transforms.foreign import Photometric

__all__ = ["is_for_each_image"]


def is_for_each_image(transform: Any) -> bool:
    """Whether a transform is known to draw for each image alone, and to leave no size to chance.

    >>> import torch
    >>> from fastload.transforms import CenterCrop, RandomApply, RandomInvert
    >>> is_for_each_image(RandomApply([RandomInvert()])), is_for_each_image(torch.nn.Identity())
    (True, False)
    >>> is_for_each_image(CenterCrop(8)), is_for_each_image(RandomApply([CenterCrop(8)]))
    (True, False)

    A draw for a whole batch would be one for all its views, and images of several sizes are no tensor, as one view of
    them might be. Known are the transforms of this package; one of a user may draw as it likes.
    """
    if not type(transform).__module__.startswith("fastload.transforms.") or isinstance(transform, Photometric):
        return False
    some = getattr(transform, "transforms", ())  # those of a container, which some images get
    return all(is_for_each_image(each) and not each.resizes for each in some)
