"""What Pillow makes of a file: its pixels, or the reason why there are none."""

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
from torchvision.io import ImageReadMode, decode_jpeg

__all__ = ["UndecodableError", "jpeg_pixels", "most_pixels", "pixels"]

BEGINNING = 8  # bytes of a file, enough to tell what it is

# The formats that are opened: those that Pillow decodes itself. EPS files, whatever their name, it would hand to
# Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "TGA", "ICO", "QOI")


class UndecodableError(ValueError):
    """Pillow refuses the file; the message is its reason."""


def pixels(data: bytes) -> NDArray[np.uint8]:
    """The first image of a file, upright and in RGB, uint8 (H, W, 3).

    >>> Image.new("L", (4, 2), 7).save(file := io.BytesIO(), "PNG")
    >>> pixels(file.getvalue()).shape
    (2, 4, 3)

    These are the pixels of ``ImageOps.exif_transpose(Image.open(file)).convert("RGB")``. Where it says which way is up
    in a manner that Pillow cannot read, the image stays as it is stored.

    Args:
        data: a file of one of ``FORMATS``.

    Raises:
        UndecodableError: it is of no such format, Pillow cannot decode all of it, or it has more than
            ``PIL.Image.MAX_IMAGE_PIXELS``, of which none is decoded then.
    """
    try:
        with _quiet(), Image.open(io.BytesIO(data), formats=_formats()) as image:
            _refuse_bomb(*image.size)
            image.load()
            with contextlib.suppress(Exception):  # unreadable metadata, behind which the pixels are whole
                ImageOps.exif_transpose(image, in_place=True)
            return np.array(image if image.mode == "RGB" else image.convert("RGB"))
    except Exception as error:  # whatever a decoder may raise for bytes that nobody foresaw
        raise UndecodableError(_reason(error, data)) from error


def jpeg_pixels(data: bytes) -> NDArray[np.uint8]:
    """The same of a baseline JPEG that stands upright, by torchvision's decoder, which is faster.

    Raises:
        UndecodableError: it cannot decode the file.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torchvision's decoders are deprecated
        try:
            image = decode_jpeg(torch.frombuffer(data, dtype=torch.uint8), mode=ImageReadMode.RGB)
        except RuntimeError as error:
            raise UndecodableError(f"torchvision: {error}") from error
    rows: NDArray[np.uint8] = image.permute(1, 2, 0).numpy()
    return rows


@cache
def _formats() -> tuple[str, ...]:
    """Those of ``FORMATS`` that this Pillow was built with."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def most_pixels() -> float:
    """Of one image, by the limit that Pillow's user may have set: ``PIL.Image.MAX_IMAGE_PIXELS``."""
    return math.inf if Image.MAX_IMAGE_PIXELS is None else Image.MAX_IMAGE_PIXELS


def _refuse_bomb(width: int, height: int) -> None:
    if width * height > most_pixels():
        raise Image.DecompressionBombError(
            f"it declares {height} x {width} = {height * width:,} pixels; at most {most_pixels():,} are decoded: set "
            "PIL.Image.MAX_IMAGE_PIXELS if it is to be trusted"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Pillow's warnings in a worker, where each would be printed anew by every worker in every epoch.

    Elsewhere they are left to the user's filters, which other threads may be using.
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
        return f"no image of {', '.join(_formats())}: {len(data):,} bytes that begin with {data[:BEGINNING]!r}"
    return f"{type(error).__name__}: {error}"
