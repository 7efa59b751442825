"""Reference of ``kernels.warp`` in plain PyTorch: ``grid_sample``."""

from __future__ import annotations

import torch
from torch.nn.functional import grid_sample

from fastload.kernels.reference.unit import from_unit, to_unit

__all__ = ["warp"]


def warp(
    images: torch.Tensor,
    matrices: torch.Tensor,
    *,
    interpolation: str = "nearest",
    fill: float | None = 0.0,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Sample each image at the coordinates to which its affine matrix, float32 (N, 6), maps the output pixels.

    >>> shift_right = torch.tensor([[1.0, 0.0, -1.0, 0.0, 1.0, 0.0]])
    >>> warp(torch.tensor([[[[0.1, 0.2, 0.3]]]]), shift_right, fill=1.0)
    tensor([[[[1.0000, 0.1000, 0.2000]]]])

    See :func:`fastload.kernels.warp`, which has the same signature.
    """
    values = to_unit(images)
    if values.numel() == 0:
        return from_unit(values, images, dtype)
    matrices = matrices.to(images.device)
    grid = _grid(matrices, *images.shape[-2:])
    warped = _sampled(values, grid, interpolation)
    if fill is not None:
        # As in torchvision: the samples, already blended with 0 at the border, are multiplied by the coverage again.
        cover = _sampled(torch.ones_like(values[:, :1]), grid, interpolation)
        warped = warped * cover + fill * (1 - cover)
    identity = (matrices == matrices.new_tensor([1, 0, 0, 0, 1, 0])).all(1)
    return from_unit(torch.where(identity.view(-1, 1, 1, 1), values, warped), images, dtype)


def _grid(matrices: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Sampling coordinates of each output pixel, (N, H, W, 2), for ``grid_sample``: -1 and 1 are the image's edges."""
    y, x = (torch.arange(length, device=matrices.device) - (length - 1) / 2 for length in (height, width))
    points = torch.stack([x.expand(height, width), y[:, None].expand(height, width), x.new_ones(height, width)], -1)
    half = matrices.new_tensor([width / 2, height / 2])
    mapped = points.flatten(0, 1) @ (matrices.view(-1, 2, 3).transpose(1, 2) / half)
    return mapped.view(-1, height, width, 2)


def _sampled(values: torch.Tensor, grid: torch.Tensor, interpolation: str) -> torch.Tensor:
    return grid_sample(values, grid, mode=interpolation, padding_mode="zeros", align_corners=False)
