"""Values as references compute with them, float32 with full scale 1, and as images store them."""

from __future__ import annotations

import torch

__all__ = ["from_unit", "to_unit"]


def to_unit(images: torch.Tensor) -> torch.Tensor:
    """A copy in float32, from 0 to 1: uint8 values over 255, floating-point values as they are.

    >>> to_unit(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """
    scale = 1 / 255 if images.dtype is torch.uint8 else 1
    return images.float() * scale


def from_unit(values: torch.Tensor, images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values as ``dtype``, laid out in memory as ``images`` are; uint8 means 255 times, clamped, to the nearest.

    >>> from_unit(torch.tensor([0.5, 1.5]), torch.empty(2), torch.uint8)
    tensor([128, 255], dtype=torch.uint8)
    """
    if dtype is torch.uint8:
        values = (values * 255).clamp(0, 255).add(0.5).floor()
    return torch.empty_like(images, dtype=dtype).copy_(values)
