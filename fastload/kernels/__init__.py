"""Image kernels: each function runs in one or two passes over memory, with its own parameters for each image.

Each function has a Triton kernel in ``kernels/triton`` and a reference in plain PyTorch in ``kernels/reference``, with
the same name and arguments. Images on a CUDA or XPU device go to the Triton kernel, all others to the reference.
Unless a docstring says otherwise, per-image parameters are tensors on the CPU. Images are not changed in place.

Pixel values are uint8, 0 to 255, or floating-point, 0 to 1. Kernels compute with values from 0 to 1 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch

from fastload.kernels import reference
from fastload.kernels.common import check_blur, check_each, check_normalize, check_warp
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

_TRITON_DEVICES = ("cuda", "xpu")  # other devices run the reference
_MAX_CHANNELS = 16  # of kernels that unroll the loop over channels; images of more run the reference


def flip_normalize(
    images: torch.Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    flip: torch.Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:
    """Flip chosen images left to right and normalise: ``(images / 255 - mean) / std`` for each channel, in one pass.

    >>> images = torch.tensor([[[[0, 255]]], [[[0, 255]]]], dtype=torch.uint8)
    >>> flip_normalize(images, [0.5], [0.25], torch.tensor([False, True])).flatten(1)
    tensor([[-2.,  2.],
            [ 2., -2.]])

    Args:
        images: uint8 (N, C, H, W), any strides. Fastest where W is a multiple of 4, and rows begin at multiples of 4
            bytes.
        mean: C numbers from 0 to 1, one for each channel.
        std: C numbers, in the same unit; none is 0.
        flip: bool (N,) on the images' device: which images to flip; None flips none.
        dtype: of the result: float32, bfloat16 or float16. Computed in float32, rounded once.
        memory_format: of the result: ``torch.contiguous_format`` or ``torch.channels_last``.

    Returns:
        The normalised images, (N, C, H, W).

    Raises:
        ValueError: ``mean`` or ``std`` does not have a number for each channel, a std is 0, or ``flip`` is not bool
            with one for each image.
    """
    check_normalize(images, mean, std, flip)
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
    clip: bool = False,
    epilogue: Epilogue = Epilogue(),  # noqa: B008  (it is not changed)
) -> tuple[torch.Tensor | Ragged, torch.Tensor | None]:
    """Crop, resize and flip images of different sizes, and run the epilogue, in one pass.

    >>> images = Ragged.of([torch.arange(16, dtype=torch.uint8).view(1, 4, 4)])
    >>> window = torch.tensor([[0, 0, 4, 4, 2, 2, 0, 0, 0, 0]], dtype=torch.int32)
    >>> resample(images, window, (2, 2))[0].shape
    torch.Size([1, 1, 2, 2])

    Args:
        images: N images of C channels: uint8, float16, bfloat16 or float32.
        windows: int32 (N, 10) on the CPU, in pixels. The columns are: top, left, height and width of the source box;
            height and width to which the box is resized; y and x in the resized box where the output begins; 1 to flip
            the output vertically, 1 to flip it horizontally, else 0.
        size: height and width of every output; or int64 (N, 2) on the CPU, a height and a width for each.
        interpolation: "bilinear" or "bicubic", antialiased as torchvision's ``resize(antialias=True)`` does, or
            "nearest".
        fill: value, from 0 to 1, of the parts of the box outside of the image, and of the output outside of the
            resized box.
        clip: whether to resize along rows first, and to clip values to 0 to 1 after each axis, as torchvision does with
            bytes: "bicubic" goes beyond the values of an image.
        epilogue: colour, normalisation, erasing and dtype of the output; ``epilogue.mix`` must be None.

    Returns:
        The outputs: a batch (N, C, H, W) if ``size`` is a tuple, else a ``Ragged``; and statistics to pass on as
        ``previous`` to the next call if ``epilogue.statistics`` is set, else None. Their memory is used again later.

    Raises:
        TypeError: the dtype of ``images`` or ``epilogue`` is unsupported.
        ValueError: ``interpolation`` is unknown, ``windows`` has another shape, dtype or device or an empty box, or
            ``epilogue`` does not fit the images.

    The bicubic filter is Keys, "Cubic convolution interpolation for digital image processing" (1981), with a = -0.5.
    """
    kernel = _kernel("resample", "resample", images, _MAX_CHANNELS)
    result: tuple[torch.Tensor | Ragged, torch.Tensor | None] = kernel(
        images, windows, size, interpolation=interpolation, fill=fill, clip=clip, epilogue=epilogue
    )
    return result


def colour(images: torch.Tensor | Ragged, epilogue: Epilogue) -> tuple[torch.Tensor | Ragged, torch.Tensor | None]:
    """Run an epilogue on images: colour operations, normalise, erase, mix and round, in one pass.

    >>> program = ColourProgram(torch.tensor([[[Op.INVERT, 0.0]]]))
    >>> colour(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), Epilogue(program=program))[0]
    tensor([[[[255,   0]]]], dtype=torch.uint8)

    Args:
        images: (N, C, H, W), or images of different sizes; uint8, float16, bfloat16 or float32.
        epilogue: what to do, and dtype and memory format of the result; see :class:`Epilogue`. Colour operations need
            1 or 3 channels.

    Returns:
        The images; and statistics to pass on as ``previous`` to the next call if ``epilogue.statistics`` is set, else
        None. Their memory is used again later.

    Raises:
        TypeError: the dtype of ``images`` or ``epilogue`` is unsupported.
        ValueError: ``epilogue`` does not fit the images, or its fields contradict one another.

    The formulas are those of ``torchvision/transforms/v2/functional/_color.py``.
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
    """Rotate, translate, scale and shear: each image by its own affine matrix, in one pass.

    >>> shift_right = torch.tensor([[1.0, 0.0, -1.0, 0.0, 1.0, 0.0]])
    >>> warp(torch.tensor([[[[0.1, 0.2, 0.3]]]]), shift_right, fill=1.0)
    tensor([[[[1.0000, 0.1000, 0.2000]]]])

    The output pixel at (x, y) samples the input at (m0 x + m1 y + m2, m3 x + m4 y + m5). Both are in pixels from the
    image's centre. torchvision's ``affine`` samples the same way: ``_get_inverse_affine_matrix`` with centre (0, 0)
    returns such m.

    Args:
        images: (N, C, H, W), any strides; uint8, float16, bfloat16 or float32.
        matrices: float32 (N, 6) on the CPU: m0 to m5, which map output to input. The identity copies the image.
        interpolation: "nearest" or "bilinear".
        fill: value, from 0 to 1, of samples outside of the image. Bilinear samples at the border are blended with it
            as torchvision's ``affine`` does. None samples 0 without that blending, as torchvision's None does.
        dtype: of the result: uint8, float16, bfloat16 or float32. Computed in float32, rounded once.

    Returns:
        The warped images, (N, C, H, W), with the images' memory format.

    Raises:
        ValueError: ``matrices`` is not float32 with a row for each image, or ``interpolation`` is neither of the two.
    """
    check_warp(images, matrices, interpolation)
    return _run("warp", images, matrices, interpolation=interpolation, fill=fill, dtype=dtype)


def blur(
    images: torch.Tensor, sigmas: torch.Tensor, kernel_size: int, *, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Blur each image with a Gaussian of its own sigma, in two passes: along rows, then along columns.

    >>> blur(torch.tensor([[[[0, 0, 200, 0, 0]]]], dtype=torch.uint8), torch.tensor([0.5]), 3, dtype=torch.uint8)
    tensor([[[[  0,  21, 157,  21,   0]]]], dtype=torch.uint8)

    The weight at distance d is ``exp(-d^2 / (2 sigma^2))``, normalised to sum 1, as in torchvision's
    ``gaussian_blur``. Borders are reflected. torchvision refuses an image that is too small to reflect; here pixels
    further out than the reflection reaches repeat the first row or column.

    Args:
        images: (N, C, H, W), any strides; uint8, float16, bfloat16 or float32.
        sigmas: float32 (N,) on the CPU, in pixels; 0 copies the image.
        kernel_size: in pixels, odd: the same in both directions and for all images.
        dtype: of the result: uint8, float16, bfloat16 or float32. Computed in float32, rounded once.

    Returns:
        The blurred images, (N, C, H, W), with the images' memory format.

    Raises:
        ValueError: ``sigmas`` is not float32 with a row for each image, or ``kernel_size`` is not odd.
    """
    check_blur(images, sigmas, kernel_size)
    return _run("blur", images, sigmas, kernel_size, dtype=dtype)


def sharpen(images: torch.Tensor, factors: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Sharpen or smooth each image by its own factor, in one pass.

    >>> image = torch.full((1, 1, 3, 3), 100, dtype=torch.uint8)
    >>> image[..., 1, 1] = 126
    >>> sharpen(image, torch.tensor([2.0]), dtype=torch.uint8)[0, 0, 1]
    tensor([100, 142, 100], dtype=torch.uint8)

    The result is ``smooth + factor * (image - smooth)``, clamped to 0 and 1, as in torchvision's ``adjust_sharpness``.
    ``smooth`` is a 3 x 3 mean that weighs the centre 5/13 and each neighbour 1/13. Pixels at the border stay as they
    are.

    Args:
        images: (N, C, H, W), any strides; uint8, float16, bfloat16 or float32.
        factors: float32 (N,) on the CPU: 0 smooths, 1 copies, above 1 sharpens.
        dtype: of the result: uint8, float16, bfloat16 or float32. Computed in float32, rounded once.

    Returns:
        The sharpened images, (N, C, H, W), with the images' memory format.

    Raises:
        ValueError: ``factors`` is not float32 with a row for each image.
    """
    check_each("factors", factors, torch.float32, (len(images),))
    return _run("sharpen", images, factors, dtype=dtype)


def equalize(
    images: torch.Tensor, chosen: torch.Tensor, *, dtype: torch.dtype = torch.float32, of_bytes: bool = False
) -> torch.Tensor:
    """Equalize the histogram of each channel of chosen images, and copy the others, in two passes.

    >>> dull = torch.arange(100, 104, dtype=torch.uint8).repeat(1, 1, 256, 1)
    >>> equalize(dull, torch.tensor([True]), dtype=torch.uint8)[0, 0, 0]
    tensor([  0,  85, 171, 255], dtype=torch.uint8)

    The result is that of torchvision's ``equalize``, whose formula is Pillow's ``ImageOps.equalize``. Floating-point
    images are quantised to 256 levels first: by ``to_dtype``, to parts of equal width, or to the nearest byte.

    Args:
        images: (N, C, H, W), any strides; uint8, float16, bfloat16 or float32.
        chosen: bool (N,) on the CPU: which images to equalize.
        dtype: of the result: uint8, float16, bfloat16 or float32.
        of_bytes: whether floating-point values are those of bytes, k / 255, with rounding errors.

    Returns:
        The images, (N, C, H, W), with the memory format of those given.

    Raises:
        ValueError: ``chosen`` is not bool with one for each image.
    """
    check_each("chosen", chosen, torch.bool, (len(images),))
    return _run("equalize", images, chosen, dtype=dtype, of_bytes=of_bytes)


def _run(name: str, images: torch.Tensor, *parameters: Any, **options: Any) -> torch.Tensor:
    result: torch.Tensor = _kernel(name, name, images)(images, *parameters, **options)
    return result


def _kernel(name: str, module: str, images: torch.Tensor | Ragged, max_channels: float = math.inf) -> Any:
    """The function ``name`` of ``kernels/triton`` or ``kernels/reference``, whichever runs on these images."""
    channels = images.channels if isinstance(images, Ragged) else images.shape[1]
    compiled = images.device.type in _TRITON_DEVICES and channels <= max_channels
    return _function("triton" if compiled else "reference", module, name)


@cache
def _function(package: str, module: str, name: str) -> Any:
    # Imported here, so that Triton is only imported on machines that run it.
    return getattr(import_module(f"fastload.kernels.{package}.{module}"), name)
