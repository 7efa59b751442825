"""Shared by the Triton kernels and the references: argument checks, output allocation, filter weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from fastload.kernels.spec import Epilogue
from fastload.structure.ragged import Ragged

__all__ = [
    "SMOOTHING_CENTRE",
    "SMOOTHING_NEIGHBOUR",
    "affine",
    "allocate",
    "as_batch",
    "check_blur",
    "check_colour",
    "check_each",
    "check_normalize",
    "check_resample",
    "check_warp",
    "gaussian_weights",
]

INTERPOLATIONS = ("bilinear", "bicubic", "nearest")
DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
FORMATS = (torch.contiguous_format, torch.channels_last)
COLOUR_CHANNELS = (1, 3)
WINDOW_COLUMNS = 10
ALIGNMENT = 16  # bytes: each image of a Ragged output begins at a multiple
COPIES = np.float32(1e-3)  # pixels: a blur with this sigma changes nothing
SMOOTHING_NEIGHBOUR, SMOOTHING_CENTRE = 1 / 13, 5 / 13  # weights of Pillow's SMOOTH filter


def check_resample(images: Ragged, windows: torch.Tensor, interpolation: str, epilogue: Epilogue) -> None:
    """Check the arguments of ``resample``.

    Raises:
        TypeError: ``images`` or ``epilogue`` has an unsupported dtype.
        ValueError: ``interpolation`` is unknown, ``windows`` has the wrong shape or an empty box, or ``epilogue`` does
            not fit the images or mixes.
    """
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"interpolation must be 'bilinear', 'bicubic' or 'nearest'; got {interpolation!r}")
    if windows.shape != (len(images), WINDOW_COLUMNS) or windows.dtype is not torch.int32 or windows.is_cuda:
        raise ValueError(
            f"windows must be int32 ({len(images)}, {WINDOW_COLUMNS}) on the CPU; "
            f"got {windows.dtype} {tuple(windows.shape)} on {windows.device}"
        )
    sides = windows.numpy()[:, 2:6]
    if sides.min(initial=1) < 1:
        image = int((sides < 1).any(1).argmax())
        raise ValueError(
            "a window's height, width, virtual height and virtual width must be 1 or more; "
            f"got {windows[image, 2:6].tolist()} for image {image}"
        )
    if epilogue.mix is not None:
        raise ValueError("resample cannot mix; got epilogue.mix: leave it to kernels.colour, after this pass")
    check_colour(images, epilogue)


def check_each(name: str, values: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Check the parameters of a batch's images.

    Raises:
        ValueError: they do not have this dtype and shape. A kernel would read behind their end.
    """
    if values.dtype is not dtype or values.shape != shape:
        raise ValueError(f"{name} must be {dtype} {shape}, for each image; got {values.dtype} {tuple(values.shape)}")


def check_normalize(
    images: torch.Tensor, mean: Sequence[float], std: Sequence[float], flip: torch.Tensor | None
) -> None:
    """Check the arguments of ``flip_normalize``."""
    channels = images.shape[1]
    if not len(mean) == len(std) == channels:
        raise ValueError(f"mean and std must have {channels} numbers, one a channel; got {mean} and {std}")
    if 0 in std:
        raise ValueError(f"std must not be 0; got {std}")
    if flip is not None:
        check_each("flip", flip, torch.bool, (len(images),))


def check_warp(images: torch.Tensor, matrices: torch.Tensor, interpolation: str) -> None:
    """Check the arguments of ``warp``."""
    if interpolation not in ("nearest", "bilinear"):
        raise ValueError(f"interpolation must be 'nearest' or 'bilinear'; got {interpolation!r}")
    check_each("matrices", matrices, torch.float32, (len(images), 6))


def check_blur(images: torch.Tensor, sigmas: torch.Tensor, kernel_size: int) -> None:
    """Check the arguments of ``blur``."""
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f"kernel_size must be a positive odd int; got {kernel_size!r}")
    check_each("sigmas", sigmas, torch.float32, (len(images),))


def check_colour(images: torch.Tensor | Ragged, epilogue: Epilogue) -> None:
    """Check the arguments of ``colour``.

    Raises:
        TypeError: ``images`` or ``epilogue`` has an unsupported dtype.
        ValueError: ``epilogue`` does not fit the images, or its fields contradict one another.
    """
    channels = images.channels if isinstance(images, Ragged) else images.shape[1]
    for name, dtype in (("the images' dtype", images.dtype), ("the result's dtype, epilogue.dtype,", epilogue.dtype)):
        if dtype not in DTYPES:
            raise TypeError(f"{name} must be one of {_join(DTYPES)}; got {dtype}: convert the images first")
    if epilogue.memory_format not in FORMATS:
        raise ValueError(f"epilogue.memory_format must be one of {_join(FORMATS)}; got {epilogue.memory_format}")
    if epilogue.program is not None and channels not in COLOUR_CHANNELS:
        raise ValueError(
            f"colour operations need 1 or 3 channels; got {channels}: leave them out, or give them the colour channels"
        )
    _check_channels(epilogue, channels)
    if epilogue.statistics and (epilogue.scale is not None or epilogue.erase is not None or epilogue.mix is not None):
        raise ValueError(
            "statistics are of values from 0 to 1; got epilogue.statistics with scale, erase or mix: leave those to "
            "the last pass"
        )
    if epilogue.mix is not None and isinstance(images, Ragged):
        raise ValueError("images of different sizes cannot be mixed; got epilogue.mix: crop or resize them first")
    program = epilogue.program
    if epilogue.previous is None and program is not None and program.needs_statistics(epilogue.part):
        raise ValueError(
            f"part {epilogue.part} of epilogue.program has contrast or autocontrast; got epilogue.previous None: give "
            "what the pass before returned, with epilogue.statistics set"
        )


def _check_channels(epilogue: Epilogue, channels: int) -> None:
    coefficients = {"epilogue.scale": epilogue.scale, "epilogue.bias": epilogue.bias}
    if epilogue.erase is not None:
        coefficients |= {"epilogue.erase.scale": epilogue.erase.scale, "epilogue.erase.bias": epilogue.erase.bias}
    for name, numbers in coefficients.items():
        if numbers is not None and len(numbers) != channels:
            raise ValueError(f"{name} must have a number for each of {channels} channels; got {numbers}")
    if (epilogue.scale is None) != (epilogue.bias is None):
        raise ValueError(
            f"epilogue.scale and bias go together; got {epilogue.scale} and {epilogue.bias}: give both or none"
        )


def _join(allowed: tuple[object, ...]) -> str:
    return ", ".join(map(str, allowed))


def allocate(images: Ragged, size: tuple[int, int] | torch.Tensor, epilogue: Epilogue) -> Ragged:
    """Allocate the outputs: one batch if ``size`` is a tuple, else images of different sizes in one block of memory."""
    if not isinstance(size, torch.Tensor):
        shape = (len(images), images.channels, *size)
        batch = torch.empty(shape, dtype=epilogue.dtype, device=images.device, memory_format=epilogue.memory_format)
        return Ragged.of(batch)
    heights, widths = size.unbind(1)
    pixels = heights * widths
    granule = ALIGNMENT // epilogue.dtype.itemsize
    lengths = -(-pixels * images.channels // granule) * granule
    starts = lengths.cumsum(0) - lengths
    memory = torch.empty(int(lengths.sum()), dtype=epilogue.dtype, device=images.device)
    ones = torch.ones_like(widths)
    interleaved = epilogue.memory_format is torch.channels_last
    strides = (ones, widths * images.channels, ones * images.channels) if interleaved else (pixels, widths, ones)
    addresses = memory.data_ptr() + starts * memory.itemsize
    return Ragged(memory, torch.stack([addresses, heights, widths, *strides], 1), images.channels)


def as_batch(outs: Ragged) -> torch.Tensor | Ragged:
    """The outputs as a batch (N, C, H, W) if they were allocated as one, else unchanged."""
    return outs.memory if isinstance(outs.memory, torch.Tensor) and outs.memory.ndim == len("NCHW") else outs


def affine(mean: Sequence[float], std: Sequence[float]) -> tuple[list[float], list[float]]:
    """Scale and bias of each channel, such that ``x * scale + bias`` is ``(x / 255 - mean) / std``."""
    scale = [1 / (255 * s) for s in std]
    bias = [-m / s for m, s in zip(mean, std, strict=True)]
    return scale, bias


def gaussian_weights(sigmas: torch.Tensor, kernel_size: int) -> torch.Tensor:
    """Each image's one-dimensional Gaussian kernel, float32 (N, K), normalised to sum 1.

    >>> gaussian_weights(torch.tensor([0.0, 1.0]), 3)
    tensor([[0.0000, 1.0000, 0.0000],
            [0.2741, 0.4519, 0.2741]])
    """
    reach = kernel_size // 2
    places = np.arange(-reach, reach + 1, dtype=np.float32) / np.float32(math.sqrt(2))
    # Of a sigma that small, and of 0, all weights but the middle one are exp(-500000) or less: 0, a kernel that copies.
    heights = np.exp(-((places / np.fmax(sigmas.numpy(), COPIES)[:, None]) ** 2))
    return torch.from_numpy(heights / heights.sum(1, keepdims=True))
