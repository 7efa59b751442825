"""How Pillow opens files for a data set that hands them over.

Pillow opens a file by the first of its plugins that takes it. One in front of all others is asked about every file, and
takes those that are bad. That for JPEGs makes an ``UndecodedJpeg`` of them. Both do nothing but in a thread that asks
for it.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from fastload.data.files import MOST_BYTES
from fastload.offload.bad_image import BadImage
from fastload.offload.undecoded import UndecodedJpeg

__all__ = ["bad_files", "opened_files", "undecoded_jpegs"]

WATCH = "FASTLOAD"  # the name of the plugin that is asked first


class _Thread(threading.local):
    """What a thread asks for, and how many files it opened meanwhile, and how many of them as ``BadImage``."""

    is_on = False
    meets_bad = False
    opened = 0
    bad = 0


_this = _Thread()
_registering = threading.Lock()


@contextmanager
def undecoded_jpegs(*, bad: bool = False) -> Iterator[None]:
    """Let ``PIL.Image.open`` of this thread open JPEGs as ``UndecodedJpeg``.

    >>> from fastload.offload.undecoded import contents_of
    >>> Image.new("RGB", (4, 2)).save(file := io.BytesIO(), "JPEG")
    >>> with undecoded_jpegs():
    ...     image = Image.open(file).convert("RGB")
    >>> image.size, contents_of(image) == file.getvalue()
    ((4, 2), True)

    Args:
        bad: open what cannot be opened or decoded as ``BadImage``. Every file is decoded to see that.
    """
    _register()
    before = _this.is_on, _this.meets_bad
    _this.is_on, _this.meets_bad = True, bad
    try:
        yield
    finally:
        _this.is_on, _this.meets_bad = before


def opened_files() -> int:
    """How many files this thread has opened within ``undecoded_jpegs``."""
    return _this.opened


def bad_files() -> int:
    """How many files this thread has opened as ``BadImage``."""
    return _this.bad


def _register() -> None:
    with _registering:
        Image.init()
        opens, accepts = Image.OPEN["JPEG"]
        if not isinstance(opens, _Opens):
            Image.register_open("JPEG", _Opens(opens), accepts)
            Image.register_open(WATCH, _bad, _is_watched)
            Image.ID.remove(WATCH)
            Image.ID.insert(0, WATCH)


class _Opens:
    """Opens a JPEG as Pillow's function does, and then as ``UndecodedJpeg`` where this thread asks for it."""

    def __init__(self, opens: Any) -> None:
        self._opens = opens

    def __call__(self, file: Any, name: str | bytes) -> Any:
        image = self._opens(file, name)
        if not _this.is_on or type(image) is not JpegImageFile:
            return image
        return UndecodedJpeg.of(image, _source(file, name))


def _bad(file: Any, name: str | bytes) -> Any:
    """A bad file as ``BadImage``; a good one is left to the plugins behind this one."""
    contents = file.read(MOST_BYTES + 1)
    _this.meets_bad = False
    try:
        with Image.open(io.BytesIO(contents)) as image:
            image.load()
    except Exception as error:  # noqa: BLE001  (decoders raise errors of many types for damaged files)
        _this.bad += 1
        if name:  # Pillow opened the file
            file.close()
        return BadImage(contents, _source(file, name), error)
    finally:
        _this.meets_bad = True
    raise SyntaxError("it is a good file")  # by which a plugin tells Pillow to ask the next one


def _is_watched(_: bytes) -> bool:
    _this.opened += _this.is_on
    return _this.meets_bad


def _source(file: Any, name: str | bytes) -> str:
    """The path of a file that is opened, if it is known."""
    path = name or getattr(file, "name", "")
    return path if isinstance(path, str) else ""
