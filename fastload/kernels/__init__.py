"""Passes over memory that are worth a kernel of their own, each with its reference in plain PyTorch.

A function here sends its images to the kernel of the same name in ``kernels/triton``, where Triton compiles for their
device, and to the one in ``kernels/reference`` elsewhere. Both take the same arguments. Parameters that each image has
its own of are given on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from fastload.kernels import reference
from fastload.kernels.spec import ColourProgram, Epilogue, Erase, Mix, Op
from fastload.kernels.upload import upload
from fastload.structure.ragged import Ragged

__all__ = [
    "ColourProgram",
    "Epilogue",
    "Erase",
    "Mix",
    "Op",
    "blur",
    "colour",
    "equalize",
    "flip_normalize",
    "reference",
    "resample",
    "sharpen",
    "upload",
    "warp",
]

# Triton compiles for these; elsewhere, and for more channels than some kernels unroll, the reference does the work.
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
    kernel = _kernel("flip_normalize", "normalize", images, _MAX_CHANNELS)
    result: torch.Tensor = kernel(images, mean, std, flip, dtype=dtype, memory_format=memory_format)
    return result


def resample(
    images: Ragged,
    windows: torch.Tensor,
    size: tuple[int, int] | torch.Tensor,
    *,
    interpolation: str = "bilinear",
    fill: float = 0.0,
    epilogue: Epilogue = Epilogue(),  # noqa: B008  (it is frozen)
) -> tuple[torch.Tensor | Ragged, torch.Tensor | None]:
    """Crop, resize and mirror images of any sizes, and finish the values, in one pass.

    >>> images = Ragged.of([torch.arange(16, dtype=torch.uint8).view(1, 4, 4)])
    >>> window = torch.tensor([[0, 0, 4, 4, 2, 2, 0, 0, 0, 0]], dtype=torch.int32)
    >>> resample(images, window, (2, 2))[0].shape
    torch.Size([1, 1, 2, 2])

    Args:
        images: uint8, 0 to 255, or floating-point, 0 to 1.
        windows: int32 (N, 10) on the CPU, in pixels, for each image: top, left, height, width of the box that is cut
            out; the height and width that it is resized to; where in that the output begins, y and x; whether the
            output is mirrored along y and x. What lies outside of the image or of the resized box is ``fill``.
        size: height and width of every output, or each output's own, int64 (N, 2).
        interpolation: "bilinear" or "bicubic", both antialiased as torchvision's, or "nearest".
        fill: a value from 0 to 1.
        epilogue: what becomes of the values.

    Returns:
        The images, (N, C, H, W) if all are of one size, and the statistics that ``epilogue`` asked for.
    """
    kernel = _kernel("resample", "resample", images, _MAX_CHANNELS)
    result: tuple[torch.Tensor | Ragged, torch.Tensor | None] = kernel(
        images, windows, size, interpolation=interpolation, fill=fill, epilogue=epilogue
    )
    return result


def colour(images: torch.Tensor | Ragged, epilogue: Epilogue) -> tuple[torch.Tensor | Ragged, torch.Tensor | None]:
    """Finish the values of images, pixel by pixel.

    >>> program = ColourProgram(torch.tensor([[[Op.INVERT, 0.0]]]), torch.tensor([[0, 1]], dtype=torch.int32))
    >>> colour(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), Epilogue(program=program))[0]
    tensor([[[[255,   0]]]], dtype=torch.uint8)

    Args:
        images: (N, C, H, W), or images of different sizes; uint8, 0 to 255, or floating-point, 0 to 1.
        epilogue: what becomes of the values.

    Returns:
        The images, and the statistics that ``epilogue`` asked for.
    """
    kernel = _kernel("colour", "colour", images, _MAX_CHANNELS)
    result: tuple[torch.Tensor | Ragged, torch.Tensor | None] = kernel(images, epilogue)
    return result


def warp(
    images: torch.Tensor,
    matrices: torch.Tensor,
    *,
    interpolation: str = "nearest",
    fill: float | None = 0.0,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Map images by inverse affine matrices about their centres, float32 (N, 6), as torchvision's ``affine`` does.

    What comes from outside is ``fill``, from 0 to 1; None is torchvision's None: 0, of which the border is not weighed
    twice.
    """
    return _whole("warp", images, matrices, interpolation=interpolation, fill=fill, dtype=dtype)


def blur(
    images: torch.Tensor, sigmas: torch.Tensor, kernel_size: int, *, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Gaussian blur, each image by its sigma in pixels, float32 (N,); those with sigma 0 are copied."""
    return _whole("blur", images, sigmas, kernel_size, dtype=dtype)


def sharpen(images: torch.Tensor, factors: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Torchvision's ``adjust_sharpness``, each image by its factor, float32 (N,); those with factor 1 are copied."""
    return _whole("sharpen", images, factors, dtype=dtype)


def equalize(images: torch.Tensor, chosen: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Torchvision's ``equalize`` of the images ``chosen``, bool (N,); the others are copied."""
    return _whole("equalize", images, chosen, dtype=dtype)


def _whole(name: str, images: torch.Tensor, *parameters: Any, **options: Any) -> torch.Tensor:
    result: torch.Tensor = _kernel(name, name, images)(images, *parameters, **options)
    return result


def _kernel(name: str, module: str, images: torch.Tensor | Ragged, most: float = math.inf) -> Any:
    channels = images.channels if isinstance(images, Ragged) else images.shape[1]
    compiled = images.device.type in _TRITON_DEVICES and channels <= most
    # Triton is imported where it runs.
    return getattr(import_module(f"fastload.kernels.{'triton' if compiled else 'reference'}.{module}"), name)
