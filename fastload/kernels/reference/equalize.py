"""Equalize the histograms of images, in plain PyTorch."""

from __future__ import annotations

import torch

from fastload.kernels.reference.unit import from_unit, to_unit

__all__ = ["equalize"]


def equalize(images: torch.Tensor, chosen: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Spread the levels of each channel of the images ``chosen``, bool (N,), evenly; the others are copied.

    >>> dull = torch.arange(100, 104, dtype=torch.uint8).repeat(1, 1, 256, 1)
    >>> equalize(dull, torch.tensor([True]), dtype=torch.uint8)[0, 0, 0]
    tensor([  0,  85, 171, 255], dtype=torch.uint8)

    Torchvision's ``equalize``, which takes floating-point images through uint8.

    See :func:`fastload.kernels.equalize`, which has the same signature.
    """
    from torchvision.transforms.v2 import functional  # noqa: PLC0415  (it takes two seconds)

    values = to_unit(images)
    places = chosen.nonzero().flatten().to(images.device)
    levels = images[places] if images.dtype is torch.uint8 else values[places].clamp(0, 1)
    values[places] = to_unit(functional.equalize(levels))
    return from_unit(values, images, dtype)
