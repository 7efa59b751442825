"""``LineSampler``: where the training thread is while the loader has nothing to do."""

from __future__ import annotations

import random
import sys
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path
from types import FrameType

import torch

__all__ = ["LineSampler"]

STANDARD = sysconfig.get_path("stdlib")
INSTALLED = ("site-packages", "dist-packages")
OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
MOST_LINES = 256
FIRST, EVERY = 100, 8  # steps of which each is looked at, and one in how many of the others: a look wakes a thread
MOST_SHOWN = 3


class LineSampler:
    """Counts the lines at which the consumer's thread is found, by one look at a random moment of a step.

    A host that is slow with its launches is found all over the model; one that waits for the device is found at the
    line that waits. Lines of PyTorch, of Python's library and of fastload stand for the line that called them.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        """The consumer's."""
        self._lines: Counter[str] = Counter()
        self._steps = 0
        self._random = random.Random()  # not the user's, whose draws must stay what they are

    def is_due(self) -> bool:
        """Whether to look at the step that begins now."""
        self._steps += 1
        return self._steps <= FIRST or self._steps % EVERY == 0

    def delay(self, wait: float) -> float:
        """After how many seconds of a wait, which is likely to be as long as the last, to look."""
        return wait * self._random.random()

    def look(self) -> None:
        """Note where the consumer's thread is."""
        frame = None if self.thread is None else sys._current_frames().get(self.thread)  # noqa: SLF001
        while frame is not None and is_of_library(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            self._count(frame)

    def shares(self) -> dict[str, float]:
        """The lines at which it was found most, as ``file:number``, each with its part of the looks."""
        total = sum(self._lines.values())
        return {line: count / total for line, count in self._lines.most_common(MOST_SHOWN)}

    def _count(self, frame: FrameType) -> None:
        line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if line in self._lines or len(self._lines) < MOST_LINES:
            self._lines[line] += 1


@cache
def is_of_library(file: str) -> bool:
    """Whether a file is PyTorch's, Python's or fastload's own, so that the caller's line tells more."""
    is_standard = file.startswith((STANDARD, "<frozen")) and not any(part in file for part in INSTALLED)
    return is_standard or file.startswith(OWN)
