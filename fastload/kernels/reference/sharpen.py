"""Reference of ``kernels.sharpen`` in plain PyTorch."""

from __future__ import annotations

import torch
from torch.nn.functional import conv2d

from fastload.kernels.common import SMOOTHING_CENTRE, SMOOTHING_NEIGHBOUR
from fastload.kernels.reference.unit import from_unit, to_unit

__all__ = ["sharpen"]

MIN_SIDE = 3  # pixels: a smaller image is all border


def sharpen(images: torch.Tensor, factors: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Compute ``smooth + factor * (image - smooth)``, clamped to 0 and 1, with each image's factor, float32 (N,).

    Factor 1 copies: an image with values outside of 0 and 1 keeps them.

    >>> image = torch.zeros(1, 1, 3, 3)
    >>> image[..., 1, 1] = 0.5
    >>> sharpen(image, torch.tensor([2.0]))[0, 0, 1].round(decimals=3)
    tensor([0.0000, 0.8080, 0.0000])

    See :func:`fastload.kernels.sharpen`, which has the same signature.
    """
    values = to_unit(images)
    factors = factors.to(images.device).view(-1, 1, 1, 1)
    channels, *size = values.shape[1:]
    if values.numel() and min(size) >= MIN_SIDE:
        filters = torch.full((channels, 1, 3, 3), SMOOTHING_NEIGHBOUR, device=images.device)
        filters[:, :, 1, 1] = SMOOTHING_CENTRE
        inner = values[..., 1:-1, 1:-1]
        smooth = conv2d(values, filters, groups=channels)
        inner += (1 - factors) * (smooth - inner)
    # Not by the formula, in which an infinite neighbour would make NaN of 0 times infinity.
    return from_unit(torch.where(factors == 1, to_unit(images), values.clamp(0, 1)), images, dtype)
