"""``ImageFolder``: torchvision's, without the decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchvision.datasets import DatasetFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

__all__ = ["ImageFolder"]


class ImageFolder(DatasetFolder):  # type: ignore[misc]
    """Image files by class, ``root/<class>/…/<file>``: each sample is a path and the number of its class.

    >>> dataset = ImageFolder("photographs/train")  # doctest: +SKIP
    >>> dataset[0]  # doctest: +SKIP
    (PosixPath('photographs/train/astronaut/00020.jpg'), 0)
    >>> loader = DataLoader(dataset, batch_size=256, num_workers=4, collate_fn=fl.collate)  # doctest: +SKIP

    Samples, their order, ``classes``, ``class_to_idx``, ``samples`` and ``targets`` are those of
    ``torchvision.datasets.ImageFolder``. Workers read the files, by :func:`fastload.collate`; they are decoded later.

    Args:
        root: the folder of the classes' folders.
        extensions: of the files to take, in lower case; by default torchvision's.
        target_transform: what becomes of a class's number.
        is_valid_file: tells from a path whether to take the file; instead of ``extensions``.
        allow_empty: take classes without a file for classes, too.

    Raises:
        FileNotFoundError: there is no ``root``, it holds no folder, or a class has no file.
    """

    def __init__(
        self,
        root: str | Path,
        extensions: tuple[str, ...] | None = None,
        *,
        target_transform: Callable[[int], Any] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> None:
        if extensions is None and is_valid_file is None:
            extensions = IMG_EXTENSIONS
        super().__init__(
            root,
            loader=Path,
            extensions=extensions,
            target_transform=target_transform,
            is_valid_file=is_valid_file,
            allow_empty=allow_empty,
        )
