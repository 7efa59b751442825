"""``UndecodedJpeg``: a JPEG file as Pillow opens it, which stays undecoded where Pillow would decode it to RGB."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from fastload.data.pixels import ORIENTATION, UPRIGHT
from fastload.offload.bad_image import BadImage

__all__ = ["UndecodedJpeg", "contents_of"]


class UndecodedJpeg(JpegImageFile):
    """A JPEG of which ``convert("RGB")`` is the undecoded file again.

    It is Pillow's own image in all other respects: whatever looks at its pixels decodes it. Images that EXIF rotates
    and images of other modes than RGB are converted as Pillow does: decoders elsewhere may turn or convert them in
    another way.
    """

    source = ""  # the path of the file, if it is known
    is_reduced = False  # whether it was asked to decode itself at a smaller size

    def convert(self, mode: str | None = None, *arguments: Any, **options: Any) -> Image.Image:
        """As Pillow's; the undecoded file if it would only be decoded."""
        if mode in (None, "RGB") and not arguments and not options and self.stays_undecoded:
            return self._again()
        return super().convert(mode, *arguments, **options)

    def draft(self, mode: str | None, size: tuple[int, int] | None) -> Any:
        """As Pillow's."""
        self.is_reduced = True
        return super().draft(mode, size)

    @property
    def stays_undecoded(self) -> bool:
        """Whether the file's pixels are those of this image, and it is not decoded yet."""
        # One that was pickled has no file.
        if self.mode != "RGB" or getattr(self, "fp", None) is None or not self.tile or self.is_reduced:
            return False
        return "exif" not in self.info or self.getexif().get(ORIENTATION, UPRIGHT) == UPRIGHT

    @property
    def contents(self) -> bytes:
        """The bytes of the file."""
        file: Any = self.fp
        if isinstance(file, io.BytesIO):
            return file.getvalue()
        place = file.tell()
        file.seek(0)
        contents: bytes = file.read()
        file.seek(place)
        return contents

    def _again(self) -> UndecodedJpeg:
        again = UndecodedJpeg(io.BytesIO(self.contents))
        again.source = self.source
        return again

    @classmethod
    def of(cls, image: JpegImageFile, path: str) -> UndecodedJpeg:
        """The same image; Pillow changes the class of an opened JPEG likewise where it turns out to be an MPO."""
        image.__class__ = cls
        undecoded: UndecodedJpeg = image  # type: ignore[assignment]
        undecoded.source = path
        return undecoded


def contents_of(image: Any) -> bytes | None:
    """The bytes of an image's file, if they say the same as its pixels and it is not decoded yet, or cannot be."""
    hands_over = isinstance(image, BadImage) or (isinstance(image, UndecodedJpeg) and image.stays_undecoded)
    return image.contents if hands_over else None
