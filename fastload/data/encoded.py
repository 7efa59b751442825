"""A batch of image files as workers hand it over: one block of bytes, and a table of what lies where."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from fastload.data.pixels import UndecodableError, pixels
from fastload.data.shared_memory import Handle, Shared, received

__all__ = ["ALIGNMENT", "EncodedImages", "Kind", "decode_on_cpu"]

CHANNELS = 3
ALIGNMENT = 256  # bytes, at whose multiples images begin, here and on the device: so neighbours can be copied at once


class Kind(IntEnum):
    """What the bytes of an image are."""

    JPEG = 0  # a file that hardware decoders take: see fastload.data.jpeg_header
    PIXELS = 1  # rows of pixels, each red, green and blue, of any other file, decoded in the worker
    BAD = 2  # none


class EncodedImages:
    """N image files, as :func:`fastload.collate` packs them and ``T.DecodeJpeg`` decodes them.

    >>> import fastload as fl
    >>> fl.collate([b"no image"])
    EncodedImages(1 file, 0 bytes, 1 of them bad)

    It stays on the CPU: it has no ``to``.

    Attributes:
        block: uint8 (bytes,): the files, each from a multiple of ``ALIGNMENT`` bytes on.
        table: int64 (N, 5), an image's offset and length in ``block``, its height and width, upright, and its ``Kind``.
            All but the kind are 0 for a bad one.
        names: each image's path, or "sample" and its place in the batch.
        problems: why bad ones are bad, by their places in the batch.
    """

    def __init__(
        self, block: torch.Tensor | Shared, table: torch.Tensor, names: list[str], problems: dict[int, str]
    ) -> None:
        self._shared = block if isinstance(block, Shared) else None
        self.block = block.block if isinstance(block, Shared) else block
        self.table = table
        self.names = names
        self.problems = problems

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_shared": None}

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        files = f"{len(self)} file{'' if len(self) == 1 else 's'}"
        bad = f", {len(self.problems)} of them bad" if self.problems else ""
        return f"EncodedImages({files}, {int(self.table[:, 1].sum()):,} bytes{bad})"

    @property
    def sizes(self) -> torch.Tensor:
        """Heights and widths, int64 (N, 2)."""
        return self.table[:, 2:4]

    def file(self, index: int) -> torch.Tensor:
        """The bytes of an image, uint8 (length,), in the block."""
        offset, length = self.table[index, :2].tolist()
        return self.block[offset : offset + length]

    def is_pinned(self) -> bool:
        """Whether the device can copy the block while the host goes on."""
        return self.block.is_pinned()

    def pin_memory(self, device: torch.device | str | None = None) -> EncodedImages:  # noqa: ARG002
        """The same files: a ``DataLoader`` would pin those of all batches that its workers are ahead.

        ``PrefetchLoader`` pins them, each batch's shortly before it is decoded. ``device`` is there as in
        ``Tensor.pin_memory``.
        """
        return self


def _sent(files: EncodedImages) -> Any:
    """What a worker's queue sends: not the block, but where it lies; the table by value, since it is small."""
    if files._shared is None:  # noqa: SLF001
        return files.__reduce_ex__(2)
    handle = files._shared.handle()  # noqa: SLF001
    return _received, (handle, files.table.numpy(), files.names, files.problems)


def _received(handle: Handle, table: np.ndarray[Any, Any], names: list[str], problems: dict[int, str]) -> EncodedImages:
    return EncodedImages(received(*handle), torch.from_numpy(table), names, problems)


ForkingPickler.register(EncodedImages, _sent)


def decode_on_cpu(files: EncodedImages, rows: Sequence[int] | None = None) -> tuple[list[torch.Tensor], dict[int, str]]:
    """The images of the ``rows``, by default of all, uint8 (3, H, W); and why some of them cannot be decoded.

    Pillow decodes them, to the pixels of ``ImageOps.exif_transpose(Image.open(file)).convert("RGB")``. In the place of
    an image that cannot be decoded stands a black one of its size, or of 1x1 if it has none.

    Args:
        files: files of a batch, in any memory of the CPU.
        rows: places in the batch.

    Returns:
        The images in the order of ``rows``, and the problems by place in the batch.
    """
    rows = range(len(files)) if rows is None else rows
    images, problems = [], {}
    for row in rows:
        image, problem = _decoded(files, row)
        images.append(image.permute(2, 0, 1))
        if problem is not None:
            problems[row] = problem
    return images, problems


def _decoded(files: EncodedImages, row: int) -> tuple[torch.Tensor, str | None]:
    """An image (H, W, 3), and what is wrong with it."""
    _, _, height, width, kind = files.table[row].tolist()
    problem = files.problems.get(row)
    if kind == Kind.PIXELS:
        return files.file(row).view(height, width, CHANNELS), problem
    if kind == Kind.JPEG:
        try:
            return torch.from_numpy(pixels(files.file(row).numpy().tobytes())), problem
        except UndecodableError as error:
            problem = str(error)
    return torch.zeros(1, 1, 1, dtype=torch.uint8).expand(max(height, 1), max(width, 1), CHANNELS), problem
