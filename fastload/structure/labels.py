"""Which tensor of a batch holds its labels: torchvision's rule, or the user's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fastload.arguments import quoted
from fastload.structure.images import describe
from fastload.structure.tree import Path, Tree, tree_unflatten

__all__ = ["LabelsGetter", "find_labels", "labels_getter_of"]

LabelsGetter = Callable[[Any], Any] | str | None


def find_labels(tree: Tree, getter: LabelsGetter = "default") -> Path | None:
    """The path of a batch's labels; None if ``getter`` is None.

    >>> from fastload.structure.tree import tree_flatten
    >>> images, index, labels = torch.zeros(2, 3, 4, 4), torch.tensor([0, 1]), torch.tensor([5, 7])
    >>> find_labels(tree_flatten({"image": images, "index": index, "label": labels}))
    ('label',)
    >>> find_labels(tree_flatten((images, index, labels)), getter=lambda batch: batch[2])
    (2,)

    "default" is the rule of torchvision's ``labels_getter="default"``: the second element of a tuple or list if it is a
    plain tensor; else, in that element, or in a batch that is a mapping, the key "labels" in any case, else the first
    key that contains "label". Fields of dataclasses and named tuples are keys too.

    Raises:
        TypeError: nothing is found, or what ``getter`` returns is no tensor of the batch.
    """
    if getter is None:
        return None
    batch = tree_unflatten(tree)
    labels = getter(batch) if callable(getter) else _by_default(batch)
    path = next((path for path, tensor in tree.tensors.items() if tensor is labels), None)
    if path is None:
        found = "finds no labels" if labels is None else f"must find a tensor of the batch; it found {quoted(labels)}"
        raise TypeError(
            f"labels_getter {found}; the tensors of the batch are {describe(tree.tensors)}: yield (images, labels) or "
            "a key 'labels', or pass labels_getter=lambda batch: batch[...], or None to mix images alone"
        )
    return path


def labels_getter_of(getter: LabelsGetter) -> LabelsGetter:
    """Return ``getter`` if it is "default", a callable or None."""
    if getter is None or getter == "default" or callable(getter):
        return getter
    raise ValueError(f"labels_getter must be 'default', a callable that takes the batch, or None; got {quoted(getter)}")


def _by_default(batch: Any) -> Any:
    if (labels := _labelled(batch)) is not None:
        return labels
    second = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
    return second if type(second) is torch.Tensor else _labelled(second)


def _labelled(value: Any) -> Any:
    """The field of ``value`` that is named as labels are; None if there is none."""
    fields = {str(name).lower(): field for name, field in _fields(value).items()}
    return fields.get("labels", next((field for name, field in fields.items() if "label" in name), None))


def _fields(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {}
