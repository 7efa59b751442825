"""``collate``: samples with image files to one batch, for a ``DataLoader`` whose workers read and do not decode."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate, get_worker_info

from fastload.arguments import flag, integer
from fastload.data.encoded import ALIGNMENT, CHANNELS, EncodedImages, Kind
from fastload.data.jpeg_header import scan
from fastload.data.pixels import UndecodableError, jpeg_pixels, most_pixels, pixels, refuse_beyond
from fastload.data.shared_memory import Shared
from fastload.structure.loaded_types import is_vision

__all__ = ["collate"]

TARGETS = ("BoundingBoxes", "Mask", "KeyPoints")  # of torchvision.tv_tensors
# Endings of file names: those of torchvision.datasets.ImageFolder.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
MOST_BYTES = 2**30  # of one file; the largest image that Pillow decodes by default has 268 MB of pixels
CHUNK = 2**16  # bytes to read at once where a file does not tell its size

# Of the pixels of one batch: 256 images of 22 megapixels. ImageNet's batches of 256 have 0.15 GB.
MOST_DECODED = 16 * 2**30
TARGET_NAMES = {"boxes", "masks", "keypoints"}  # as in the targets of torchvision's detection models


def collate(samples: Sequence[Any], *, decode: bool = False, most_bytes: int = MOST_DECODED) -> Any:
    """Pack the image files of a batch's samples into one block, and collate everything else as PyTorch does.

    >>> from torch.utils.data import DataLoader
    >>> loader = DataLoader([(b"...", 3), (b"...", 5)], batch_size=2, collate_fn=collate)
    >>> next(iter(loader))
    (EncodedImages(2 files, 0 bytes, 2 of them bad), tensor([3, 5]))

    A sample is a file, or a tuple, named tuple, list or mapping that holds files at any depth; the batch has the same
    structure. The first sample decides which fields are files. They are those of the first of these kinds that occurs:

    1. bytes: ``bytes``, ``bytearray``, ``memoryview``;
    2. paths: ``os.PathLike``;
    3. uint8 tensors and arrays of one dimension;
    4. strings that end as image files do: ``.jpg``, ``.png`` and so on.

    Fields of the other kinds are collated, so an image in bytes may come with its path, and a path with uint8 labels.

    Fields that cannot be stacked become a list with one entry for each sample. So do all fields beside detection
    targets, whatever their shapes: that is, in a tuple or mapping with ``BoundingBoxes``, ``Mask`` or ``KeyPoints`` of
    ``tv_tensors``, or with an item "boxes", "masks" or "keypoints".

    A file that cannot be read or decoded raises no error here. ``EncodedImages.problems`` has the reason, and
    ``T.DecodeJpeg(on_error=...)`` decides. Baseline JPEGs are packed undecoded; other files are decoded here by Pillow:
    in RGB, turned upright by EXIF (which ``torchvision.datasets.ImageFolder`` ignores), grey of 16 bits scaled to 8.
    docs/guarantees.md states what hostile files cannot do.

    Args:
        samples: the samples of one batch.
        decode: decode baseline JPEGs here too, by torchcodec: for devices without a JPEG decoder, where many workers
            decode faster than the training process. Pass ``collate_fn=functools.partial(fl.collate, decode=True)``.
        most_bytes: how many bytes the files of a batch may have, and how many their pixels, by their headers; 16 GiB by
            default. A file that would exceed this is a bad file. Set it by ``functools.partial`` too. An image of more
            than ``PIL.Image.MAX_IMAGE_PIXELS`` is one in any case.

    Raises:
        TypeError: there is no sample, the first has no file, or another has something else in the place of one.
        ValueError: ``most_bytes`` is not positive.
    """
    most_bytes = integer("most_bytes", most_bytes, least=1)
    flag("decode", decode)
    if not isinstance(samples, Sequence) or not samples:
        raise TypeError(f"samples must be a list of at least one sample; got {samples!r}")
    is_file = next((is_file for is_file in _KINDS_OF_FILE if _holds(samples[0], is_file)), None)
    if is_file is None:
        raise TypeError(
            f"fl.collate packs image files, and the first of the samples has none: {_described(samples[0])}. Let the "
            "data set return a file's bytes or its pathlib.Path, or leave out collate_fn"
        )
    return _collate(samples, is_file, partial(_pack, decode=decode, most_bytes=most_bytes), _stack)


Test = Callable[[Any], bool]


def _is_bytes(value: Any) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)


def _is_path(value: Any) -> bool:
    return isinstance(value, os.PathLike)


def _is_array_of_bytes(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.ndim == 1 and value.dtype is torch.uint8
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.uint8


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and value.lower().endswith(EXTENSIONS)


_KINDS_OF_FILE: tuple[Test, ...] = (_is_bytes, _is_path, _is_array_of_bytes, _is_file_name)


def _holds(value: Any, is_file: Test) -> bool:
    """Whether ``value`` is a file, or holds one at any depth."""
    return is_file(value) or any(_holds(child, is_file) for child in _children(value))


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, tuple | list) else ()


Collate = Callable[[Sequence[Any]], Any]


def _collate(fields: Sequence[Any], is_file: Test, pack: Collate, stack: Collate) -> Any:
    """Collate one field of all samples: files by ``pack``, fields that hold none by ``stack``."""
    first = fields[0]
    if is_file(first):
        return pack(fields)
    if not _holds(first, is_file):
        return stack(fields)
    if _is_target(first):
        stack = list
    if isinstance(first, Mapping):
        return {key: _collate([field[key] for field in fields], is_file, pack, stack) for key in first}
    columns = [_collate(column, is_file, pack, stack) for column in zip(*fields, strict=True)]
    if isinstance(first, list):
        return columns
    return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)


def _stack(fields: Sequence[Any]) -> Any:
    if _is_target(fields[0]):
        return list(fields)
    try:
        return default_collate(list(fields))
    except (
        KeyError,
        RuntimeError,
        TypeError,
        ValueError,
    ):  # of different shapes, or of a type that PyTorch does not collate
        return list(fields)


def _is_target(value: Any) -> bool:
    named = isinstance(value, Mapping) and not TARGET_NAMES.isdisjoint(value)
    return named or any(is_vision(each, *TARGETS) for each in (value, *_children(value)))


class _Content(NamedTuple):
    """What the block holds of a file, and its row of the table."""

    data: bytes | NDArray[np.uint8]
    height: int = 0
    width: int = 0
    kind: Kind = Kind.BAD
    problem: str = ""

    @property
    def bytes_of_batch(self) -> int:
        """What it takes of the bytes that a batch may have: those of the file or of its pixels, if they are more."""
        return max(len(self.data), CHANNELS * self.height * self.width)


def _pack(files: Sequence[Any], *, decode: bool, most_bytes: int) -> EncodedImages:
    contents: list[_Content] = []
    for index, file in enumerate(files):
        content = _content(file, index, decode=decode, most_bytes=most_bytes)
        most_bytes -= content.bytes_of_batch
        contents.append(content)
    lengths = np.array([len(content.data) for content in contents])
    ends = np.cumsum(-(-lengths // ALIGNMENT) * ALIGNMENT)
    offsets = np.where(lengths, np.append(0, ends[:-1]), 0)
    block = _empty(max(int(ends[-1]), ALIGNMENT))
    memory = (block.block if isinstance(block, Shared) else block).numpy()
    for offset, length, content in zip(offsets.tolist(), lengths.tolist(), contents, strict=True):
        memory[offset : offset + length] = np.frombuffer(content.data, np.uint8)
    rows = [(content.height, content.width, content.kind) for content in contents]
    table = torch.from_numpy(np.column_stack([offsets, lengths, rows]))
    problems = {index: content.problem for index, content in enumerate(contents) if content.kind == Kind.BAD}
    return EncodedImages(block, table, [_name(file, index) for index, file in enumerate(files)], problems)


def _content(file: Any, index: int, *, decode: bool, most_bytes: int) -> _Content:
    if not (_is_bytes(file) or _is_array_of_bytes(file) or isinstance(file, str | os.PathLike)):
        raise TypeError(
            f"sample {index} has no file where the first of its batch has one: {_described(file)}. It must be bytes, a "
            "path, or a uint8 tensor or array of one dimension"
        )
    try:
        return _content_of(_read(file), decode=decode, most_bytes=most_bytes)
    except (OSError, UndecodableError) as error:
        return _Content(b"", problem=str(error))


def _read(file: Any) -> bytes:
    if _is_bytes(file):
        return bytes(file)
    if _is_array_of_bytes(file):
        return np.asarray(file).tobytes()
    try:
        opened = open(file, "rb", buffering=0, opener=_opened_at_once)  # noqa: SIM115
    except ValueError as error:  # not a valid path: it has a zero byte, for example
        raise UndecodableError(f"{type(error).__name__}: {error}") from error
    with opened:
        return _read_bounded(opened)


def _opened_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe would be waited for


def _read_bounded(file: io.FileIO) -> bytes:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise UndecodableError("it is no regular file but a pipe, a socket or a device")
    size, chunks = status.st_size, []
    if size <= MOST_BYTES:
        size = 0
        while size <= MOST_BYTES and (chunk := file.read(max(status.st_size - size, CHUNK))):
            chunks.append(chunk)
            size += len(chunk)
    if size > MOST_BYTES:
        raise UndecodableError(f"it has {size:,} bytes or more; at most {MOST_BYTES:,} are read of a file")
    return b"".join(chunks)


def _content_of(data: bytes, *, decode: bool, most_bytes: int) -> _Content:
    header = scan(data)
    if header is None or header.height * header.width > most_pixels():
        decoded = pixels(data, most_bytes)
    else:
        undecoded = _Content(data, *header, Kind.JPEG)
        refuse_beyond(most_bytes, undecoded.bytes_of_batch)
        if not decode:
            return undecoded
        decoded = jpeg_pixels(data)
    height, width, _ = decoded.shape
    return _Content(decoded.reshape(-1), height, width, Kind.PIXELS)


def _empty(size: int) -> torch.Tensor | Shared:
    """Memory for the block; in a worker it is shared with the training process."""
    if get_worker_info() is None or not hasattr(os, "memfd_create"):  # shared on Linux only
        return torch.empty(size, dtype=torch.uint8)
    return Shared(size)


def _name(file: Any, index: int) -> str:
    return os.fsdecode(file) if isinstance(file, str | os.PathLike) else f"sample {index}"


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{type(value).__name__} {value.dtype} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_described(child)}' for key, child in value.items())}}}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of ({', '.join(map(_described, value))})"
    return type(value).__name__
