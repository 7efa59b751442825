"""An image file to pixels on the CPU: any file by Pillow, baseline JPEGs also by torchcodec."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch.utils.data import get_worker_info

from fastload.data.encoded import CHANNELS
from fastload.data.jpeg_header import scans
from fastload.data.jpeg_library import library_decoder

__all__ = [
    "ORIENTATION",
    "UPRIGHT",
    "Picture",
    "UndecodableError",
    "colours",
    "jpeg_pixels",
    "most_pixels",
    "pixels",
    "refuse_beyond",
    "values",
]

ORIENTATION, UPRIGHT = 0x0112, 1  # of EXIF
TURNED = range(2, 9)  # orientations of images that are turned or mirrored to be upright

SIGNATURE = 8  # bytes at the start of a file, quoted where its format is unknown

# A progressive JPEG has about ten. Each takes the time of a pass over all pixels, and no more than a dozen bytes.
MOST_SCANS = 100

# Formats whose grey of more than 8 bits has 16, though Pillow, or older versions of it, call its mode "I".
SIXTEEN_BITS = ("PNG", "PPM")

# What a value of 16 bits is divided by to have 8: 65535 is 255.
SIXTEEN_TO_EIGHT = 257

# The formats that Pillow decodes itself. EPS is not one: Pillow would run Ghostscript on it, whatever the file's name.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "TGA", "ICO", "QOI")


class UndecodableError(ValueError):
    """A file that cannot be decoded; the message is the reason."""


class Picture(NamedTuple):
    """A decoded image, and the EXIF orientation by which it was turned: ``UPRIGHT`` if it was not."""

    values: NDArray[Any]
    turned: int = UPRIGHT


def pixels(data: bytes, most_bytes: float = math.inf) -> NDArray[np.uint8]:
    """The first image of a file, upright and in RGB, uint8 (H, W, 3).

    >>> Image.new("L", (4, 2), 7).save(file := io.BytesIO(), "PNG")
    >>> pixels(file.getvalue()).shape
    (2, 4, 3)

    The pixels are those of ``ImageOps.exif_transpose(Image.open(file)).convert("RGB")``, except that grey of 16 bits is
    scaled to 8 bits, where Pillow would make all values above 255 white. An image whose orientation Pillow cannot read
    is not rotated.

    Args:
        data: the bytes of a file in one of ``FORMATS``.
        most_bytes: how many bytes the result may have.

    Raises:
        UndecodableError: the format is not one of ``FORMATS``, the file is damaged, or it has more than
            ``PIL.Image.MAX_IMAGE_PIXELS`` pixels, ``most_bytes`` bytes or ``MOST_SCANS`` scans, and is not decoded.
    """
    return colours(data, most_bytes).values


def colours(data: bytes, most_bytes: float = math.inf, *, upright: bool = True) -> Picture:
    """The image of :func:`pixels`; if not ``upright``, as Pillow opens it, without EXIF rotation."""
    return _decoded(data, most_bytes, _rgb, upright)


def values(data: bytes, most_bytes: float = math.inf, *, upright: bool = True) -> Picture:
    """The values of a file as they are stored: grey, or numbers of a palette, (H, W), or colours, (H, W, C).

    >>> Image.new("L", (4, 2), 7).save(file := io.BytesIO(), "PNG")
    >>> values(file.getvalue()).values.tolist()
    [[7, 7, 7, 7], [7, 7, 7, 7]]

    Whole numbers of more than 8 bits are int32, others float32. Arguments and errors are those of :func:`colours`.
    """
    stored, turned = _decoded(data, most_bytes, np.array, upright)
    wide = np.float32 if stored.dtype.kind == "f" else np.int32
    return Picture(stored if stored.dtype.itemsize == 1 else stored.astype(wide), turned)


def _decoded(data: bytes, most_bytes: float, convert: Callable[[Image.Image], NDArray[Any]], upright: bool) -> Picture:
    try:
        with _quiet(), Image.open(io.BytesIO(data), formats=_formats()) as image:
            _refuse_bomb(*image.size)
            refuse_beyond(most_bytes, CHANNELS * image.height * image.width)
            _refuse_many_scans(data)
            image.load()
            turned = _turned_upright(image) if upright else UPRIGHT
            _refuse_bomb(*image.size)  # an icon's header may tell another size than the image in it has
            refuse_beyond(most_bytes, CHANNELS * image.height * image.width)
            return Picture(convert(image), turned)
    except UndecodableError:
        raise
    except Exception as error:  # decoders raise errors of many types for damaged files
        raise UndecodableError(_reason(error, data)) from error


def _turned_upright(image: Image.Image) -> int:
    """Turn a loaded image upright, and return the orientation that it had."""
    orientation = UPRIGHT
    with contextlib.suppress(Exception):  # metadata that cannot be read: the pixels are good
        orientation = image.getexif().get(ORIENTATION, UPRIGHT)
        ImageOps.exif_transpose(image, in_place=True)
    return int(orientation) if orientation in TURNED else UPRIGHT


def jpeg_pixels(data: bytes | memoryview) -> NDArray[np.uint8]:
    """The pixels of a baseline JPEG without EXIF rotation, uint8 (H, W, 3), by torchcodec, which is faster.

    Raises:
        UndecodableError: the file cannot be decoded.
    """
    try:
        (image,) = library_decoder()([torch.frombuffer(bytearray(data), dtype=torch.uint8)], torch.device("cpu"))
    except RuntimeError as error:
        raise UndecodableError(str(error)) from error
    rows: NDArray[np.uint8] = image.permute(1, 2, 0).numpy()
    return rows


def refuse_beyond(most_bytes: float, size: int) -> None:
    """Raise UndecodableError if a file or its pixels have more bytes than are left to its batch."""
    if size > most_bytes:
        raise UndecodableError(
            f"the file or its pixels have {size:,} bytes, and its batch may have {most_bytes:,} more: raise most_bytes "
            "of fl.collate if you trust the files"
        )


def _rgb(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode == "RGB":
        return np.array(image)
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in SIXTEEN_BITS):
        grey = (np.array(image).astype(np.uint32) + SIXTEEN_TO_EIGHT // 2) // SIXTEEN_TO_EIGHT
        return np.repeat(grey.astype(np.uint8)[:, :, None], CHANNELS, axis=2)
    return np.array(image.convert("RGB"))


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


def _refuse_many_scans(data: bytes) -> None:
    if scans(data, MOST_SCANS + 1) > MOST_SCANS:
        raise UndecodableError(f"it has more than {MOST_SCANS} scans")


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
