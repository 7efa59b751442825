"""``BadImage``: stands for a file that Pillow cannot open or decode."""

from __future__ import annotations

from typing import Any

from PIL import Image

__all__ = ["BadImage"]


class BadImage(Image.Image):
    """An image without pixels: what looks at them meets Pillow's error. Converted to RGB or copied, it is itself.

    So a data set that only opens a file hands over its bytes, and decoding says what is wrong with them.
    """

    def __init__(self, contents: bytes, source: str, error: Exception) -> None:
        super().__init__()
        self._mode, self._size = "RGB", (1, 1)
        self.contents = contents
        self.source = source
        self.error = error

    def load(self) -> Any:
        raise self.error

    def convert(self, mode: str | None = None, *arguments: Any, **options: Any) -> Image.Image:
        return self if mode in (None, "RGB") else super().convert(mode, *arguments, **options)

    def copy(self) -> BadImage:
        return self
