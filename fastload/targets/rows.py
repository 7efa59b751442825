"""Which fields have a row for each box, and lose those of boxes that are removed."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastload.structure.loaded_types import is_vision
from fastload.structure.tree import Path, retyped

__all__ = ["PER_BOX", "Field", "PerBox", "loses_rows", "rows_taken"]

PerBox = Sequence[Hashable] | None  # names of fields, or their places in a tuple; None for the default

# Those of torchvision's detection models and data sets. So is every name that contains "label".
PER_BOX = (
    "boxes", "bbox", "bboxes", "masks", "keypoints", "area", "areas", "iscrowd", "scores", "category_id",
    "segmentation", "num_keypoints",
)  # fmt: skip
PER_IMAGE = ("image_id", "size", "orig_size", "image_size", "original_size", "canvas_size")


@dataclass(frozen=True, eq=False)
class Field:
    """A tensor or list that stands beside boxes: its key, field name or place in a tuple is its ``name``."""

    path: Path
    name: Hashable
    value: Any


def loses_rows(field: Field, boxes: Field, per_box: PerBox) -> bool:
    """Whether a field with as many rows as there are boxes has one for each, by its name or type.

    >>> boxes, labels = Field((1, "boxes"), "boxes", torch.zeros(1, 4)), Field((1, "labels"), "labels", torch.ones(1))
    >>> index = Field((1, "size"), "size", torch.tensor([3]))
    >>> loses_rows(labels, boxes, None), loses_rows(index, boxes, None), loses_rows(index, boxes, per_box=["size"])
    (True, False, True)

    By default it is one of ``PER_BOX``, has "label" in its name, is ``KeyPoints`` or ``Mask`` (or a list of these), or
    follows the boxes in a tuple. If it is none of these, the first time a warning names it.
    """
    if field.path == boxes.path:
        return True
    if per_box is not None:
        return field.name in per_box
    if field.name in PER_BOX or "label" in str(field.name).lower() or _is_target(field.value):
        return True
    if isinstance(boxes.name, int) and field.name == boxes.name + 1:
        return True
    if field.name not in PER_IMAGE:
        warnings.warn(
            f"the field {field.name!r} has as many rows as there were boxes, and keeps them where boxes are removed: "
            "pass T.Compose(..., per_box=[...]) with the names of all fields that have a row for each box, "
            f"{field.name!r} among them if it has",
            UserWarning,
            stacklevel=2,
        )
    return False


def rows_taken(value: Any, rows: torch.Tensor) -> Any:
    """Some rows of a tensor or list."""
    if isinstance(value, torch.Tensor):
        return retyped(value[rows.to(value.device)], value)
    return type(value)(value[row] for row in rows.tolist())


def _is_target(value: Any) -> bool:
    values = value if isinstance(value, MutableSequence) else [value]
    return all(is_vision(each, "KeyPoints", "Mask") for each in values)
