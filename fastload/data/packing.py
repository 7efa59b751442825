"""``pack``: the image files of a batch to one block, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastload.data.block import Block
from fastload.data.decoded_layout import DecodedLayout
from fastload.data.encoded import CHANNELS, EncodedImages, Kind
from fastload.data.files import name, read_into
from fastload.data.jpeg_header import scan
from fastload.data.pixels import UPRIGHT, Picture, UndecodableError, colours, jpeg_pixels, most_pixels, refuse_beyond
from fastload.interrupts import interrupt_cores

__all__ = ["MOST_DECODED", "Decoded", "pack"]

# Of the pixels of one batch: 256 images of 22 megapixels. ImageNet's batches of 256 have 0.15 GB.
MOST_DECODED = 16 * 2**30


class Decoded(NamedTuple):
    """An image that stands among files and is decoded: uint8 (H, W, 3)."""

    pixels: NDArray[np.uint8]


class _Content(NamedTuple):
    """What the block holds of a file, and its row of the table."""

    data: bytes | NDArray[np.uint8] | memoryview
    height: int = 0
    width: int = 0
    kind: Kind = Kind.BAD
    problem: str = ""
    turned: int = UPRIGHT

    @property
    def bytes_of_batch(self) -> int:
        """What it takes of the bytes that a batch may have: those of the file or of its pixels, if they are more."""
        return max(len(self.data), CHANNELS * self.height * self.width)


def pack(
    files: Sequence[Any],
    *,
    decode: bool = False,
    upright: bool | None = None,
    most_bytes: int = MOST_DECODED,
    names: Sequence[str] | None = None,
) -> EncodedImages:
    """Pack files in one block: baseline JPEGs as they are, others decoded.

    >>> pack([b"no image", Decoded(np.zeros((2, 4, 3), np.uint8))])
    EncodedImages(2 files, 24 bytes, 1 of them bad)

    Args:
        files: contents, paths and whatever else :func:`fastload.collate` takes for a file, or ``Decoded``.
        decode: decode baseline JPEGs too.
        upright: whether EXIF turns images; None: it does, and ``EncodedImages.turned`` tells which were turned.
        most_bytes: how many bytes files and pixels may have.
        names: of the files, for errors; by default their paths, or the samples' numbers.
    """
    cores = interrupt_cores()
    cores.look()
    cores.leave()  # on one of them a worker takes three times as long, and all wait for it: batches come in order
    block = Block()
    rows: list[list[int]] = []
    problems: dict[int, str] = {}
    turned: dict[int, int] = {}
    for index, file in enumerate(files):
        content = _content(file, block.free, decode=decode, upright=upright is not False, most_bytes=most_bytes)
        most_bytes -= content.bytes_of_batch
        rows.append([block.put(content.data), len(content.data), content.height, content.width, content.kind])
        if content.kind == Kind.BAD:
            problems[index] = content.problem
        if content.turned != UPRIGHT and upright is None:
            turned[index] = content.turned
    _size_like_neighbours(rows, most_bytes)
    names = list(names or [name(file, index) for index, file in enumerate(files)])
    table = torch.tensor(rows)
    layout_at = block.put(DecodedLayout.of_table(table.numpy()).written())
    return EncodedImages(block.finished(), table, names, problems, turned=turned, layout_at=layout_at)


def _size_like_neighbours(rows: list[list[int]], most_bytes: int) -> None:
    """Give bad files the size of the batch's first good image, as far as memory allows: of what may replace them.

    Transforms may ask for a least size, as crops do, and a file that is no image tells none.
    """
    size = next(([height, width] for *_, height, width, kind in rows if kind != Kind.BAD), [0, 0])
    for row in rows:
        if row[4] == Kind.BAD and CHANNELS * size[0] * size[1] <= most_bytes:
            row[2:4] = size
            most_bytes -= CHANNELS * size[0] * size[1]


def _content(file: Any, room: memoryview, *, decode: bool, upright: bool, most_bytes: int) -> _Content:
    try:
        if isinstance(file, Decoded):
            return _content_of_picture(Picture(file.pixels), most_bytes)
        return _content_of(read_into(room, file), decode=decode, upright=upright, most_bytes=most_bytes)
    except (OSError, UndecodableError) as error:
        return _Content(b"", problem=str(error))


def _content_of(data: bytes | memoryview, *, decode: bool, upright: bool, most_bytes: int) -> _Content:
    header = scan(data)
    if header is None or header.height * header.width > most_pixels():
        return _content_of_picture(colours(bytes(data), most_bytes, upright=upright), most_bytes)
    undecoded = _Content(data, *header, Kind.JPEG)
    refuse_beyond(most_bytes, undecoded.bytes_of_batch)
    return _content_of_picture(Picture(jpeg_pixels(data)), most_bytes) if decode else undecoded


def _content_of_picture(picture: Picture, most_bytes: int) -> _Content:
    image = picture.values
    refuse_beyond(most_bytes, image.size)
    height, width, _ = image.shape
    return _Content(image.reshape(-1), height, width, Kind.PIXELS, turned=picture.turned)
