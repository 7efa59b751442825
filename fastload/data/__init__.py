"""Data sets of image files that workers read and do not decode, and sample data."""

from typing import TYPE_CHECKING, Any

from fastload.data.sample import sample_data

if TYPE_CHECKING:
    from fastload.data.folder import ImageFolder

__all__ = ["ImageFolder", "sample_data"]


def __getattr__(name: str) -> Any:
    """``ImageFolder`` is torchvision's, whose import takes two seconds: it is imported when it is first used."""
    if name != "ImageFolder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fastload.data.folder import ImageFolder  # noqa: PLC0415

    return ImageFolder
