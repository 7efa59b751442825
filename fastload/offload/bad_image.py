"""``BadImage``: stands for a file that Pillow cannot open or decode."""

from __future__ import annotations

from copy import copy
from typing import Any

from PIL import Image

__all__ = ["BadImage"]


class BadImage(Image.Image):
    """An image of which nothing is known: whoever asks for its size or pixels meets Pillow's error.

    Converted to RGB or copied, it is itself. So a data set that only opens a file hands over its bytes, and decoding
    says what is wrong with them.
    """

    format = None

    def __init__(self, contents: bytes, source: str, error: Exception) -> None:
        super().__init__()
        self._mode = "RGB"
        self._is_opening = True
        self.contents = contents
        self.filename = self.source = source
        self.error = copy(error)  # without its traceback, whose frames hold the file

    def __repr__(self) -> str:
        return f"BadImage({self.source!r}, {self.error!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return BadImage, (self.contents, self.source, self.error)

    @property
    def size(self) -> tuple[int, int]:
        if not self._is_opening:
            raise copy(self.error)
        self._is_opening = False  # Image.open asks once whether it is too large
        return 1, 1

    def load(self) -> Any:
        raise copy(self.error)

    def convert(self, mode: str | None = None, *arguments: Any, **options: Any) -> Image.Image:
        return self if mode in (None, "RGB") else super().convert(mode, *arguments, **options)

    def copy(self) -> BadImage:
        return self
