"""``library_decoder``: baseline JPEGs to pixels by torchcodec, or by torchvision where torchcodec is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module

import torch

__all__ = ["library_decoder", "torchvision_decode"]

Decoder = Callable[[list[torch.Tensor], torch.device], Sequence[torch.Tensor]]


@cache
def library_decoder() -> Decoder:
    """The function that decodes files, uint8 (bytes,) on the CPU, on a device: to RGB, uint8 (3, H, W) each.

    It raises a RuntimeError if one of the files is bad. torchcodec decodes to the same pixels as Pillow on the CPU.
    """
    try:
        torchcodec = import_module("torchcodec.decoders")  # without FFmpeg or a fitting torch it does not load
    except (ImportError, RuntimeError):
        return torchvision_decode
    return lambda files, device: torchcodec.decode_jpeg(files, device=device)


def torchvision_decode(files: list[torch.Tensor], device: torch.device) -> Sequence[torch.Tensor]:
    """The last resort: torchvision's function is deprecated since 0.29, and imported nowhere else."""
    from torchvision.io import ImageReadMode, decode_jpeg  # noqa: PLC0415

    images: Sequence[torch.Tensor] = decode_jpeg(files, mode=ImageReadMode.RGB, device=device)
    return images
