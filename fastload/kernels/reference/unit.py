"""Convert pixel values between their stored dtype and float32 from 0 to 1, in which the references compute."""

from __future__ import annotations

import torch

__all__ = ["from_unit", "to_unit"]


def to_unit(images: torch.Tensor) -> torch.Tensor:
    """Copy to float32: uint8 values are divided by 255, floating-point values are kept.

    >>> to_unit(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """
    scale = 1 / 255 if images.dtype is torch.uint8 else 1
    return images.float() * scale


def from_unit(values: torch.Tensor, images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert to ``dtype``, in the memory format of ``images``; uint8 stores 255 x, clamped and rounded to nearest.

    >>> from_unit(torch.tensor([0.5, 1.5]), torch.empty(2), torch.uint8)
    tensor([128, 255], dtype=torch.uint8)
    """
    if dtype is torch.uint8:
        values = (values * 255).clamp(0, 255).add(0.5).floor()
    return torch.empty_like(images, dtype=dtype).copy_(values)
