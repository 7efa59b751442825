"""Data sets of image files that workers read and do not decode, and sample data."""

from fastload.data.folder import ImageFolder
from fastload.data.sample import sample_data

__all__ = ["ImageFolder", "sample_data"]
