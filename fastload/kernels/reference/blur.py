"""Reference of ``kernels.blur`` in plain PyTorch: two depthwise convolutions."""

from __future__ import annotations

import torch
from torch.nn.functional import conv2d

from fastload.kernels.common import gaussian_weights
from fastload.kernels.reference.unit import from_unit, to_unit

__all__ = ["blur"]


def blur(
    images: torch.Tensor, sigmas: torch.Tensor, kernel_size: int, *, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Blur each image with a Gaussian of its own sigma, float32 (N,), in pixels; sigma 0 copies the image.

    >>> blur(torch.tensor([[[[0.0, 0.0, 1.0, 0.0, 0.0]]]]), torch.tensor([0.5]), 3).round(decimals=3)
    tensor([[[[0.0000, 0.1070, 0.7870, 0.1070, 0.0000]]]])

    See :func:`fastload.kernels.blur`, which has the same signature.
    """
    values = to_unit(images)
    chosen = sigmas.nonzero().flatten().to(images.device)
    if chosen.numel() and values.numel():
        kernels = gaussian_weights(sigmas, kernel_size).to(images.device)[chosen]
        values[chosen] = _blurred(values[chosen], kernels)
    return from_unit(values, images, dtype)


def _blurred(values: torch.Tensor, kernels: torch.Tensor) -> torch.Tensor:
    n, channels, height, width = values.shape
    reach = kernels.shape[1] // 2
    rows, columns = (_reflected_indices(length, reach).to(values.device) for length in (height, width))
    planes = values[:, :, rows[:, None], columns].view(1, n * channels, len(rows), len(columns))
    kernels = kernels.repeat_interleave(channels, 0)[:, None, None]
    planes = conv2d(planes, kernels, groups=n * channels)
    planes = conv2d(planes, kernels.transpose(2, 3), groups=n * channels)
    return planes.view(n, channels, height, width)


def _reflected_indices(length: int, reach: int) -> torch.Tensor:
    """Source indices that pad a line by ``reach`` at both ends: reflected; index 0 where that leaves the line."""
    indices = torch.arange(-reach, length + reach).abs()
    return torch.minimum(indices, 2 * (length - 1) - indices).clamp(min=0)
