"""Reference of ``kernels.equalize``: torchvision's ``equalize``."""

from __future__ import annotations

import torch

from fastload.kernels.reference.unit import from_unit, to_unit

__all__ = ["equalize"]


def equalize(
    images: torch.Tensor, chosen: torch.Tensor, *, dtype: torch.dtype = torch.float32, of_bytes: bool = False
) -> torch.Tensor:
    """Equalize the histogram of each channel of the images ``chosen``, bool (N,); copy the others.

    >>> dull = torch.arange(100, 104, dtype=torch.uint8).repeat(1, 1, 256, 1)
    >>> equalize(dull, torch.tensor([True]), dtype=torch.uint8)[0, 0, 0]
    tensor([  0,  85, 171, 255], dtype=torch.uint8)

    See :func:`fastload.kernels.equalize`, which has the same signature.
    """
    from torchvision.transforms.v2 import functional  # noqa: PLC0415  (importing it takes seconds)

    values = to_unit(images)
    indices = chosen.nonzero().flatten().to(images.device)
    levels = values[indices].clamp(0, 1)
    if of_bytes or images.dtype is torch.uint8:
        levels = from_unit(levels, levels, torch.uint8)
    values[indices] = to_unit(functional.equalize(levels))
    return from_unit(values, images, dtype)
