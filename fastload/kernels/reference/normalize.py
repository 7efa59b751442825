"""Reference of ``kernels.flip_normalize`` in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastload.kernels.common import affine

__all__ = ["flip_normalize"]


def flip_normalize(
    images: torch.Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    flip: torch.Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:
    """Flip chosen images left to right, then compute ``(images / 255 - mean) / std`` for each channel.

    See :func:`fastload.kernels.flip_normalize`, which has the same signature.
    """
    scale, bias = (images.new_tensor(values, dtype=torch.float32).view(-1, 1, 1) for values in affine(mean, std))
    if flip is not None:
        images = torch.where(flip.view(-1, 1, 1, 1), images.flip(-1), images)
    return (images.float() * scale).add_(bias).to(dtype, memory_format=memory_format)
