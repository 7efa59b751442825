"""``KernelCase``: what a case of ``kernels`` is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

__all__ = ["BYTES", "OUT", "RESAMPLING", "KernelCase", "Run"]

OUT = torch.bfloat16
# Allowed errors, of full scale
RESAMPLING = 1e-3  # the order of float32 sums, and of the weights in them
BYTES = 1 / 255  # two passes, along x and y, that each round to bytes

Run = Callable[[Any], Any]  # a subject: a case's input to normalised values, a batch or images of different sizes


class KernelCase(Protocol):
    """What is computed, which subjects can, and how they are checked. The type of its inputs is its own."""

    @property
    def subjects(self) -> Sequence[str]:
        """The subjects that can do it."""

    def inputs(self, batch: int, side: int, device: torch.device, number: int) -> Any:
        """Return random inputs, of which ``number`` is the seed."""

    def build(self, name: str, side: int, device: torch.device, memory_format: torch.memory_format) -> Run:
        """Return the subject ``name``, which gives values in ``memory_format``."""

    def check(self, name: str, run: Run, inputs: Any, memory_format: torch.memory_format) -> None:
        """Raise ``WrongValuesError`` if what ``run`` makes of ``inputs`` is wrong."""

    def bytes_to_move(self, inputs: Any) -> int:
        """Count the bytes that any implementation must read and write."""
