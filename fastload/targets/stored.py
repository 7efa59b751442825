"""``Stored``: the coordinates of a batch's targets as its user gets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fastload.targets.layout import FROM_CORNERS, TO_CORNERS, Target

__all__ = ["Stored", "have_area"]


@dataclass(frozen=True)
class Stored:
    """Coordinates in the formats and dtypes in which they came.

    All are converted at once to each format and dtype that there is, mostly one: an operation for each image would take
    longer, and give up the interpreter each time.
    """

    targets: Sequence[Target]
    converted: Mapping[tuple[str | None, torch.dtype], torch.Tensor]

    @classmethod
    def of(cls, coordinates: np.ndarray, targets: Sequence[Target]) -> Stored:
        kinds = {_kind(target) for target in targets}
        return cls(targets, {kind: _converted(coordinates, *kind) for kind in kinds})

    @cached_property
    def counts(self) -> list[int]:
        """How many rows each target has."""
        return [target.count for target in self.targets]

    def by_target(self) -> Iterator[tuple[Target, torch.Tensor]]:
        """Each target's own, in its shape and on its device."""
        split = {kind: torch.split(values, self.counts) for kind, values in self.converted.items()}
        for place, target in enumerate(self.targets):
            values, like = split[_kind(target)][place], target.value
            yield target, values.view(like.shape).to(like.device)

    def have_area(self) -> np.ndarray:
        """Which boxes have an area as they are stored, bool (B,)."""
        corners = {
            (name, dtype): have_area(values.double().numpy() @ TO_CORNERS[name or "XYXY"])
            for (name, dtype), values in self.converted.items()
        }
        starts = np.cumsum([0, *self.counts])
        parts = [
            corners[_kind(target)][start : start + count]
            for target, start, count in zip(self.targets, starts, self.counts, strict=False)
        ]
        return np.concatenate([np.empty(0, dtype=bool), *parts])


def _kind(target: Target) -> tuple[str | None, torch.dtype]:
    return target.format, target.value.dtype


def _converted(coordinates: np.ndarray, name: str | None, dtype: torch.dtype) -> torch.Tensor:
    values = torch.from_numpy(coordinates if name in {None, "XYXY"} else coordinates @ FROM_CORNERS[name])
    # In float32 first, where 2.9999999999999996 is 3: integers are truncated.
    return values.to(dtype) if dtype.is_floating_point else values.float().to(dtype)


def have_area(boxes: np.ndarray) -> np.ndarray:
    """Which boxes have an area, bool (B,), of their corners x1, y1, x2, y2, (B, 4)."""
    areas: np.ndarray = np.all(boxes[:, 2:] > boxes[:, :2], axis=1)
    return areas
