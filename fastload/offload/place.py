"""``Place``: where a data set keeps its transform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Place"]


@dataclass(frozen=True)
class Place:
    """The transform of a data set, and how to make a copy of the data set with another.

    Attributes:
        transform: as the data set calls it.
        attribute: where it was found, such as ``dataset.transform``.
        with_other: makes the copy; the data set itself, and all else that it holds, is left alone.
    """

    transform: Any
    attribute: str
    with_other: Callable[[Any], Any]
