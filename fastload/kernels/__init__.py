"""Passes over memory that are worth a kernel of their own, each with its reference in plain PyTorch beside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastload.kernels import reference

__all__ = ["flip_normalize", "reference"]

# Triton compiles for these; elsewhere, and for more channels than are worth unrolling, the reference does the work.
_TRITON_DEVICES = ("cuda", "xpu")
_MAX_CHANNELS = 16


def flip_normalize(
    images: torch.Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    flip: torch.Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:
    """Mirror some images left to right and compute ``(images / 255 - mean) / std`` for each channel, in one pass.

    >>> images = torch.tensor([[[[0, 255]]], [[[0, 255]]]], dtype=torch.uint8)
    >>> flip_normalize(images, [0.5], [0.25], torch.tensor([False, True])).flatten(1)
    tensor([[-2.,  2.],
            [ 2., -2.]])

    Args:
        images: uint8 (N, C, H, W), any strides; rows of four-pixel words are read fastest.
        mean: of each channel, C numbers, as fractions of 255.
        std: of each channel, likewise.
        flip: which images to mirror, bool (N,) on the images' device; None for none.
        dtype: of the result: float32, bfloat16 or float16. Computed in float32, rounded once.
        memory_format: of the result: ``torch.contiguous_format`` or ``torch.channels_last``.
    """
    if images.device.type in _TRITON_DEVICES and images.shape[1] <= _MAX_CHANNELS:
        from fastload.kernels.normalize import flip_normalize as kernel  # noqa: PLC0415  (Triton where it runs)
    else:
        kernel = reference.flip_normalize
    return kernel(images, mean, std, flip, dtype=dtype, memory_format=memory_format)
