"""``FolderOfImages``: the images of a folder as a data set."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset

from fastload.data.files import EXTENSIONS

__all__ = ["FolderOfImages"]


class FolderOfImages(Dataset[tuple[Any, int]]):
    """The images of a folder and its subfolders, without hidden ones; all have the label 0.

    In the place of a file that cannot be decoded stands the next that can.

    Attributes:
        samples: the paths.
        transform: what is done to an image of Pillow's, in RGB.

    Raises:
        ValueError: there is no image, or none that can be decoded.
    """

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        self.samples = _images_in(folder)
        if not self.samples:
            raise ValueError(f"there is no image in {folder}: looked for {', '.join(EXTENSIONS)}")
        self.transform = transform
        self._is_bad = torch.zeros(len(self.samples), dtype=torch.bool)
        self._is_bad.share_memory_()  # type: ignore[no-untyped-call]  # workers write to it
        if self._image_from(0) is None:
            raise ValueError(f"no image in {folder} can be decoded: tried {len(self.samples)}, {self.samples[0]} first")

    @property
    def bad_files(self) -> list[str]:
        """The files found so far that cannot be decoded."""
        return [self.samples[index] for index in self._is_bad.nonzero().flatten().tolist()]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self._image_from(index)), 0

    def _image_from(self, index: int) -> Image.Image | None:
        """The image at ``index``, or the next one that can be decoded."""
        candidates = map(self._decoded, chain(range(index, len(self)), range(index)))
        return next((image for image in candidates if image is not None), None)

    def _decoded(self, index: int) -> Image.Image | None:
        if self._is_bad[index]:
            return None
        try:
            with Image.open(self.samples[index]) as image:
                converted: Image.Image = image.convert("RGB")
                return converted
        except Exception:  # noqa: BLE001  (decoders raise errors of many types for damaged files)
            self._is_bad[index] = True
            return None


def _images_in(folder: Path) -> list[str]:
    images: list[str] = []
    for here, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = sorted(name for name in files if name.lower().endswith(EXTENSIONS) and not name.startswith("."))
        images += [os.path.join(here, name) for name in names]
    return images
