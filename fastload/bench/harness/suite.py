"""``Suite``: what a suite of the benchmark is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from fastload.bench.harness.plan import Plan
from fastload.bench.harness.row import Row

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Sizes", "Suite", "sizes_on"]

SizeT = TypeVar("SizeT", bound="DataclassInstance")


@dataclass(frozen=True)
class Sizes(Generic[SizeT]):
    """How large a case is: on a GPU the size that figures are of, on the CPU as small as still runs everything."""

    gpu: SizeT
    cpu: SizeT

    def on(self, device: torch.device) -> SizeT:
        return self.gpu if device.type == "cuda" else self.cpu


def sizes_on(device: torch.device, cases: Mapping[str, Sizes[Any]]) -> dict[str, dict[str, Any]]:
    """Return each case's size for the settings of a result file."""
    return {case: asdict(sizes.on(device)) for case, sizes in cases.items()}


@dataclass(frozen=True)
class Suite(Generic[SizeT]):
    """A question that the benchmark answers: its cases, who is compared, and how a case is measured.

    ``measure`` sets a case up, checks each subject's values, which raises ``WrongValuesError`` if one is wrong, and
    then measures the subjects with ``by_turns``. So a case with a wrong subject has no figures.
    """

    name: str
    cases: Mapping[str, Sizes[SizeT]]
    subjects: Sequence[str]
    baseline: str  # the subject that ratios are to; measured whatever else is chosen
    packages: Mapping[str, str]  # subject -> the package that it needs beside fastload's own
    runs: int
    settings: Callable[[torch.device], dict[str, object]]
    measure: Callable[[Plan[SizeT]], list[Row]]
    ranks: Mapping[str, int] = field(default_factory=dict)  # case -> on how many devices it trains, if on several
    variants: Sequence[str] = ()  # of a case on a GPU, if they may be chosen; on the CPU there is the first alone
    more_variants: Sequence[str] = ()  # that take too long to be measured unless they are chosen
