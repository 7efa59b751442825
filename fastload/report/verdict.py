"""``Verdict``: what bounds training, why, and what to change first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["Bound", "Cause", "Verdict"]


class Bound(str, Enum):
    """What training waits for most."""

    INPUT = "input-bound"
    COPY = "copy-bound"
    HOST = "host-bound"
    COMPUTE = "compute-bound"
    UNKNOWN = "not known yet"


class Cause(str, Enum):
    """Why it does."""

    NONE = "nothing to change in the input"
    TOO_FEW_WORKERS = "too few workers"
    TOO_MANY_WORKERS = "too many workers"
    SMALL_BATCHES = "batches too small for workers"
    SLOW_WORKER = "one slow worker"
    SLOW_READS = "slow reads"
    SLOW_DATASET = "slow data set"
    DECODE_IN_WORKERS = "work in the workers that the device could do"
    UNPINNED = "memory that is not pinned"
    FLOAT_BATCHES = "images copied as floats"
    DEPTH = "too few batches ahead"
    HEAVY_TRANSFORM = "a heavy transform"
    REFUSED_FILES = "files that the GPU's decoder refuses"
    HIDDEN_SYNC = "the loop waits for the device"
    SLOW_LAUNCHES = "a host too slow for its launches"
    UNEVEN_RANKS = "uneven ranks"
    TOO_SHORT = "too few batches"


@dataclass(frozen=True)
class Verdict:
    """What bounds training.

    ``stage`` names the slowest stage of the input; ``most`` is by what factor training could get faster if input cost
    nothing, 1.0 if it does not wait at all. ``changes`` are sentences, the most promising first.
    """

    bound: Bound
    cause: Cause
    why: str
    stage: str = ""
    most: float = 1.0
    changes: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        return self.why if self.bound is Bound.UNKNOWN else f"{self.bound.value.capitalize()}: {self.why}"
