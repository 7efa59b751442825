"""``ImageFolder``: as torchvision's, with paths in the place of decoded images."""

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
    ``torchvision.datasets.ImageFolder``. Workers read the files in :func:`fastload.collate`; ``T.DecodeJpeg`` decodes
    them in the training process.

    Args:
        root: the folder that holds one folder for each class.
        extensions: file name endings to accept, in lower case; by default torchvision's.
        target_transform: called with the number of a class; the sample gets its result instead.
        is_valid_file: called with a path, returns whether to accept the file; give this or ``extensions``.
        allow_empty: keep classes that have no file.

    Raises:
        FileNotFoundError: ``root`` does not exist or holds no folder, or a class has no file.
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
