"""Data sets that workers only read, and a sample one."""

from fastload.data.folder import ImageFolder
from fastload.data.sample import sample_data

__all__ = ["ImageFolder", "sample_data"]
