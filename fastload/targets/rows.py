"""Which fields have a row for each box, and lose those of boxes that are removed."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastload.structure.loaded_types import is_vision
from fastload.structure.tree import Path, name_of, retyped

__all__ = [
    "PER_BOX",
    "Field",
    "PerBox",
    "Place",
    "loses_rows",
    "row_count",
    "rows_taken",
    "warn_of_distant",
    "warn_of_missing",
]

PerBox = Sequence[Hashable] | None  # names of fields, or their places in a tuple; None for the default
Place = tuple[int | None, Path]  # of a field: its sample, and the path of what holds it, without the sample's index

# Those of torchvision's detection models and data sets. So is every name that contains "label".
PER_BOX = (
    "boxes", "bbox", "bboxes", "masks", "keypoints", "area", "areas", "iscrowd", "scores", "category_id",
    "segmentation", "num_keypoints",
)  # fmt: skip
PER_IMAGE = ("image_id", "size", "orig_size", "image_size", "original_size", "canvas_size")


@dataclass(frozen=True, eq=False)
class Field:
    """Something with rows that stands beside boxes: its key, field name or place in a tuple is its ``name``."""

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
    follows the boxes in a tuple. If it is none of these, the first time a warning names it. Tuples are mostly a size,
    or the names of all classes: of numbers and words only those of ``PER_BOX`` or named "labels" have a row for each.
    """
    if field.path == boxes.path:
        return True
    if per_box is not None:
        return field.name in per_box
    if field.name in PER_BOX or field.name == "labels" or _is_target(field.value):
        return True
    follows = isinstance(boxes.name, int) and field.name == boxes.name + 1
    if ("label" in str(field.name).lower() or follows) and type(field.value) is not tuple:
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


def warn_of_distant(fields: Mapping[Place, Sequence[Field]], counts: Mapping[int, int], per_box: PerBox) -> None:
    """Warn of a field named as one with a row for each box that has as many in every sample, but is not beside boxes.

    Args:
        fields: by their place, those that are not beside boxes.
        counts: how many boxes each sample has. If all have one, a field may as well have one row for each image.
        per_box: names of fields that have a row for each box, as the user gave them.
    """
    columns: dict[tuple[Path, Hashable], dict[int, Field]] = defaultdict(dict)
    for (sample, owner), together in fields.items():
        if sample is not None:
            for field in together:
                columns[owner, field.name][sample] = field
    for (_, name), column in columns.items():
        is_named = name in PER_BOX or "label" in str(name).lower() if per_box is None else name in per_box
        rows = {sample: row_count(field.value) for sample, field in column.items()}
        if is_named and rows == counts and max(counts.values()) > 1:
            warnings.warn(
                f"{name_of(next(iter(column.values())).path)} has as many rows as its image has boxes, as in every "
                "sample, but is not beside the boxes, so it keeps its rows where boxes are removed: if it has one for "
                "each box, let the data set or collate_fn put it beside them",
                UserWarning,
                stacklevel=2,
            )


def warn_of_missing(per_box: PerBox, fields: Iterable[Field]) -> None:
    """Warn of a name that the user gave and that none of ``fields`` has, those beside the boxes of a batch."""
    there = dict.fromkeys(field.name for field in fields)
    missing = next((name for name in per_box or () if name not in there), None)
    if missing is not None:
        warnings.warn(
            f"per_box names {missing!r}, and beside the boxes of this batch no tensor, array, list or tuple has that "
            f"name; got {list(per_box or ())!r}, and the names there are {', '.join(map(repr, there))}: correct it if "
            "no other batch has it either",
            UserWarning,
            stacklevel=2,
        )


def row_count(value: Any) -> int | None:
    """How many rows a field has; None for what has none. A tuple with a type of its own is a record, not rows.

    >>> row_count(np.zeros((2, 4))), row_count(("cat", "dog", "cat")), row_count(torch.Size([40, 40]))
    (2, 3, None)
    """
    if isinstance(value, torch.Tensor | np.ndarray):
        least = len("KHW") if is_vision(value, "Mask") else 1
        return value.shape[0] if value.ndim >= least else None
    return len(value) if isinstance(value, MutableSequence) or type(value) is tuple else None


def rows_taken(value: Any, rows: np.ndarray) -> Any:
    """Some rows of a tensor, array, list or tuple, by their numbers."""
    if isinstance(value, torch.Tensor):
        return retyped(value[torch.from_numpy(rows).to(value.device)], value)
    if isinstance(value, np.ndarray):
        return value[rows]
    return type(value)(value[row] for row in rows.tolist())


def _is_target(value: Any) -> bool:
    values = value if isinstance(value, MutableSequence | tuple) else [value]
    return all(is_vision(each, "KeyPoints", "Mask") for each in values)
