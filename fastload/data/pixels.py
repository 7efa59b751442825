"""An image file to pixels on the CPU: any file by Pillow, baseline JPEGs also by torchvision."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch.utils.data import get_worker_info

__all__ = ["UndecodableError", "jpeg_pixels", "most_pixels", "pixels", "torchvision_decode_jpeg"]

SIGNATURE = 8  # bytes at the start of a file, quoted where its format is unknown

# The formats that Pillow decodes itself. EPS is not one: Pillow would run Ghostscript on it, whatever the file's name.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "TGA", "ICO", "QOI")


class UndecodableError(ValueError):
    """A file that cannot be decoded; the message is the reason."""


def pixels(data: bytes) -> NDArray[np.uint8]:
    """The first image of a file, upright and in RGB, uint8 (H, W, 3).

    >>> Image.new("L", (4, 2), 7).save(file := io.BytesIO(), "PNG")
    >>> pixels(file.getvalue()).shape
    (2, 4, 3)

    The pixels are those of ``ImageOps.exif_transpose(Image.open(file)).convert("RGB")``. An image whose orientation
    Pillow cannot read is not rotated.

    Args:
        data: the bytes of a file in one of ``FORMATS``.

    Raises:
        UndecodableError: the format is not one of ``FORMATS``, the file is damaged, or it has more than
            ``PIL.Image.MAX_IMAGE_PIXELS`` pixels, and is not decoded.
    """
    try:
        with _quiet(), Image.open(io.BytesIO(data), formats=_formats()) as image:
            _refuse_bomb(*image.size)
            image.load()
            with contextlib.suppress(Exception):  # metadata that cannot be read: the pixels are good
                ImageOps.exif_transpose(image, in_place=True)
            return np.array(image if image.mode == "RGB" else image.convert("RGB"))
    except Exception as error:  # decoders raise errors of many types for damaged files
        raise UndecodableError(_reason(error, data)) from error


def jpeg_pixels(data: bytes) -> NDArray[np.uint8]:
    """The pixels of a baseline JPEG without EXIF rotation, uint8 (H, W, 3), by torchvision, which is faster.

    Raises:
        UndecodableError: torchvision cannot decode the file.
    """
    try:
        (image,) = torchvision_decode_jpeg([torch.frombuffer(bytearray(data), dtype=torch.uint8)], torch.device("cpu"))
    except RuntimeError as error:
        raise UndecodableError(f"torchvision: {error}") from error
    rows: NDArray[np.uint8] = image.permute(1, 2, 0).numpy()
    return rows


def torchvision_decode_jpeg(files: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """The RGB images of JPEG files, uint8 (bytes,) on the CPU, on ``device``: uint8 (3, H, W), each of its own size.

    The function is deprecated since torchvision 0.29, so it is imported here only, and called without its warning.

    Raises:
        RuntimeError: torchvision cannot decode one of the files.
    """
    from torchvision.io import ImageReadMode, decode_jpeg  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        images: list[torch.Tensor] = decode_jpeg(files, mode=ImageReadMode.RGB, device=device)
    return images


@cache
def _formats() -> tuple[str, ...]:
    """The ``FORMATS`` that the installed Pillow was built with."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def most_pixels() -> float:
    """The limit of pixels in one image: ``PIL.Image.MAX_IMAGE_PIXELS``, which the user may have set."""
    return math.inf if Image.MAX_IMAGE_PIXELS is None else Image.MAX_IMAGE_PIXELS


def _refuse_bomb(width: int, height: int) -> None:
    if width * height > most_pixels():
        raise Image.DecompressionBombError(
            f"it declares {height} x {width} = {height * width:,} pixels; at most {most_pixels():,} are decoded: set "
            "PIL.Image.MAX_IMAGE_PIXELS if you trust the file"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Pillow's warnings in a worker: every worker would print each of them again in every epoch.

    Elsewhere the user's filters decide: changing filters is not safe while other threads run.
    """
    if get_worker_info() is None:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _reason(error: Exception, data: bytes) -> str:
    if not data:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return f"no image of {', '.join(_formats())}: {len(data):,} bytes that begin with {data[:SIGNATURE]!r}"
    return f"{type(error).__name__}: {error}"
