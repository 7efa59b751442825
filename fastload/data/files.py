"""Image files as samples hold them: which values are files, their names and their bytes."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from PIL.ImageFile import ImageFile

from fastload.data.pixels import UndecodableError

__all__ = ["EXTENSIONS", "head", "is_file", "is_word", "kind_of", "may_be_image", "name", "read", "read_into"]

# Endings of file names: those of torchvision.datasets.ImageFolder, and of the other formats that are decoded.
EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".avif", ".jp2", ".qoi",
)  # fmt: skip
# How files of formats begin that cannot be taken for a label: a number in bytes may begin as an icon does.
SIGNATURE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|RIFF.{4}WEBP|GIF8[79]a|II\*\0|MM\0\*|BM.{4}\0{4}"
    rb"|.{4}ftypavi[fs]|\0{3}\x0cjP  |qoif",
    re.DOTALL,
)
MOST_BYTES = 2**30  # of one file; the largest image that Pillow decodes by default has 268 MB of pixels
CHUNK = 2**16  # bytes to read at once where a file does not tell its size
CONTENTS, PATHS = (bytes, bytearray, memoryview), (str, os.PathLike)
LONGEST_WORD = 64  # bytes
HEAD = 26  # bytes up to the kind of colour of a PNG


def kind_of(value: Any) -> int | None:
    """The rank of a value's kind among those of files; None for what is no file.

    >>> kind_of(b"..."), kind_of("a.jpg"), kind_of("a cat"), kind_of({"bytes": None, "path": "a.jpg"})
    (2, 5, None, 0)
    """
    return next((rank for rank, is_kind in enumerate(_KINDS) if is_kind(value)), None)


def is_file(value: Any) -> bool:
    """Whether a value can be read as a file, whatever its name."""
    return isinstance(value, (*CONTENTS, *PATHS)) or kind_of(value) is not None


def may_be_image(file: Any) -> bool:
    """Whether a file has the name of an image, or contents that begin as one.

    >>> may_be_image(b"3"), may_be_image("mask.png"), may_be_image({"bytes": b"GIF89a", "path": None})
    (False, True, True)
    """
    if _is_opened(file):
        return True
    file = _content_or_path(file)
    if isinstance(file, PATHS):
        return os.fsdecode(file).lower().endswith(EXTENSIONS)
    return is_file(file) and SIGNATURE.match(head(file)) is not None


def is_word(value: Any) -> bool:
    r"""Whether a value is no contents of a file: a short text, nothing, or no bytes at all.

    >>> is_word(b"cat"), is_word(b""), is_word(3), is_word(b"\0\1"), is_word(b"an error page " * 9)
    (True, True, True, False, False)
    """
    if not _is_bytes(value):
        return True
    text = bytes(value[: LONGEST_WORD + 1])
    return len(text) <= LONGEST_WORD and all(byte >= ord(" ") or byte in b"\t\r\n" for byte in text)


def head(file: Any) -> bytes:
    """The first bytes of a file; none if it cannot be read."""
    file = _content_or_path(file)
    if isinstance(file, PATHS):
        try:
            with _opened(file) as opened:
                _told(opened)
                return opened.read(HEAD) or b""
        except (OSError, UndecodableError):
            return b""
    return bytes(file[:HEAD]) if _is_bytes(file) else np.asarray(file)[:HEAD].tobytes()


def read(file: Any) -> bytes:
    """The contents of a file.

    Raises:
        OSError: it cannot be read.
        UndecodableError: it is no regular file, or has more than ``MOST_BYTES``.
    """
    return bytes(read_into(memoryview(b""), file))


def read_into(room: memoryview, file: Any) -> bytes | memoryview:
    """The contents of a file: as the beginning of ``room``, if they are read from a path and it has room.

    Errors are those of :func:`read`.
    """
    file = _content_or_path(file)
    if isinstance(file, PATHS):
        with _opened(file) as opened:
            return _read_bounded(opened, _told(opened), room)
    return bytes(file) if _is_bytes(file) else np.asarray(file).tobytes()


def name(file: Any, sample: int) -> str:
    """A file's path if it is known, else "sample" and its number."""
    path = file["path"] if _is_record(file) else file.filename if _is_opened(file) else file
    is_known = isinstance(path, PATHS) and path != ""
    return os.fsdecode(path) if is_known else f"sample {sample}"


def _is_record(value: Any) -> bool:
    """Whether it is what Hugging Face's ``Image(decode=False)`` yields: contents, path, or both."""
    if not isinstance(value, Mapping) or set(value) != {"bytes", "path"}:
        return False
    return _is_bytes(value["bytes"]) or (value["bytes"] is None and isinstance(value["path"], PATHS))


def _is_opened(value: Any) -> bool:
    """Whether it is what ``PIL.Image.open`` returns, before its pixels are decoded or another page is chosen."""
    return isinstance(value, ImageFile) and value.fp is not None and bool(value.tile) and value.tell() == 0


def _is_bytes(value: Any) -> bool:
    return isinstance(value, CONTENTS)


def _is_path(value: Any) -> bool:
    return isinstance(value, os.PathLike)


def _is_array_of_bytes(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.ndim == 1 and value.dtype is torch.uint8
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.uint8


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and value.lower().endswith(EXTENSIONS)


_KINDS: tuple[Callable[[Any], bool], ...] = (
    _is_record,
    _is_opened,
    _is_bytes,
    _is_path,
    _is_array_of_bytes,
    _is_file_name,
)


def _content_or_path(file: Any) -> Any:
    if _is_record(file):
        return file["path"] if file["bytes"] is None else file["bytes"]
    if not _is_opened(file):
        return file
    if file.filename:
        return file.filename
    file.fp.seek(0)
    return file.fp.read(MOST_BYTES + 1)


def _opened(path: Any) -> io.FileIO:
    """A file, opened without waiting.

    Raises:
        OSError: it cannot be opened.
        UndecodableError: there can be no such path.
    """
    try:
        return open(path, "rb", buffering=0, opener=_opened_at_once)
    except ValueError as error:  # not a valid path: it has a zero byte, for example
        raise UndecodableError(f"{type(error).__name__}: {error}") from error


def _opened_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe would be waited for


def _told(file: io.FileIO) -> int:
    """How many bytes a file has, as the system tells.

    Raises:
        UndecodableError: it is no regular file.
    """
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise UndecodableError("it is no regular file but a pipe, a socket or a device")
    return status.st_size


def _read_bounded(file: io.FileIO, told: int, room: memoryview) -> bytes | memoryview:
    if told < len(room):
        room = room[: MOST_BYTES + 1]
        size = _fill(room, file, told)
        if size < len(room):
            return room[:size]
        file.seek(0)
    return _read_apart(file, told)


def _fill(room: memoryview, file: io.FileIO, told: int) -> int:
    """Read a file until it ends or ``room`` is full, and return how many bytes there are.

    Where there are as many as the file tells, and no more came though there was room, it is not asked again.
    """
    size = file.readinto(room)
    while size != told and (more := file.readinto(room[size:])):
        size += more
    return size


def _read_apart(file: io.FileIO, told: int) -> bytes:
    size, chunks = told, []
    if size <= MOST_BYTES:
        size = 0
        while size <= MOST_BYTES and (chunk := file.read(max(told - size, CHUNK))):
            chunks.append(chunk)
            size += len(chunk)
    if size > MOST_BYTES:
        raise UndecodableError(f"it has {size:,} bytes or more; at most {MOST_BYTES:,} are read of a file")
    return b"".join(chunks)
