"""``decode_on_cpu``: files of a batch to pixels, in the training process and with Pillow."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastload.data.encoded import CHANNELS, EncodedImages, Kind
from fastload.data.pixels import UndecodableError, pixels

__all__ = ["decode_on_cpu"]


def decode_on_cpu(files: EncodedImages, rows: Sequence[int] | None = None) -> tuple[list[torch.Tensor], dict[int, str]]:
    """Decode some files of a batch, by default all.

    >>> from fastload import collate
    >>> decode_on_cpu(collate([b"no image"]))[0][0].shape
    torch.Size([3, 1, 1])

    The pixels are those of ``ImageOps.exif_transpose(Image.open(file)).convert("RGB")``. A file that cannot be decoded
    gives a black image of its size, or of that which ``EncodedImages.table`` has for it, at least 1x1.

    Args:
        files: a batch of files, in pinned or pageable memory.
        rows: indices into the batch.

    Returns:
        The images in the order of ``rows``, each uint8 (3, H, W); and for each file that cannot be decoded the reason,
        by its index in the batch.
    """
    images, problems = [], {}
    for row in range(len(files)) if rows is None else rows:
        image, problem = _decode(files, row)
        images.append(image.permute(2, 0, 1))
        if problem is not None:
            problems[row] = problem
    return images, problems


def _decode(files: EncodedImages, row: int) -> tuple[torch.Tensor, str | None]:
    """One image, uint8 (H, W, 3), and the reason if its file cannot be decoded."""
    _, _, height, width, kind = files.table[row].tolist()
    problem = files.problems.get(row)
    if kind == Kind.PIXELS:
        stored = files.file(row).view(height, width, CHANNELS)
        return stored.clone() if files.is_lent else stored, problem
    if kind == Kind.JPEG:
        try:
            return torch.from_numpy(pixels(files.file(row).numpy().tobytes())), problem
        except UndecodableError as error:
            problem = str(error)
    return torch.zeros(1, 1, 1, dtype=torch.uint8).expand(max(height, 1), max(width, 1), CHANNELS), problem
