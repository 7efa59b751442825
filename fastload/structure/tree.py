"""Nested batches: apply a function to every tensor of one, however deep, and keep every type as it was."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

__all__ = [
    "Path",
    "at",
    "children_of",
    "find",
    "map_movable",
    "movables",
    "put",
    "take_rows",
    "tensors",
    "with_movables",
]

Path = tuple[Hashable, ...]

# Types of which a batch may hold hundreds, and which hold nothing: there is no need to ask each for its methods.
ATOMS = frozenset({str, bytes, int, float, bool, type(None)})


def map_movable(function: Callable[[Any, Path], Any], batch: Any, path: Path = ()) -> Any:
    """``batch`` with ``function(leaf, path)`` in the place of each tensor and of each object that has a ``to`` method.

    >>> map_movable(lambda tensor, path: path, {"image": torch.zeros(1), "names": ["a"], "boxes": [torch.ones(2)]})
    {'image': ('image',), 'names': ['a'], 'boxes': [('boxes', 0)]}

    Tuples, named tuples, lists, mappings, dataclasses and their subclasses are entered and come back with their type;
    everything else is left alone, and so is a container in which nothing changed. ``path`` is made of the indices, keys
    and field names that lead to a leaf.
    """
    if isinstance(batch, torch.Tensor):
        return function(batch, path)
    children = children_of(batch)
    if children is None:
        return function(batch, path) if _is_movable(batch) else batch
    mapped = [(key, map_movable(function, child, (*path, key))) for key, child in children]
    if all(new is old for (_, new), (_, old) in zip(mapped, children, strict=True)):
        return batch
    return _rebuild(batch, mapped)


def movables(batch: Any) -> list[Any]:
    """What :func:`map_movable` gives to its function, in the same order.

    >>> movables({"labels": torch.tensor(1), "names": ["a"], "boxes": [torch.tensor(2)]})
    [tensor(1), tensor(2)]
    """
    found: list[Any] = []
    _collect(batch, found)
    return found


def _collect(batch: Any, found: list[Any]) -> None:
    if isinstance(batch, torch.Tensor):
        found.append(batch)
        return
    children = children_of(batch)
    if children is not None:
        for _, child in children:
            _collect(child, found)
    elif _is_movable(batch):
        found.append(batch)


def with_movables(batch: Any, values: Iterator[Any]) -> Any:
    """``batch`` with ``values`` in the places of its :func:`movables`.

    >>> with_movables({"labels": torch.tensor(1), "names": ["a"], "boxes": [torch.tensor(2)]}, iter([3, 4]))
    {'labels': 3, 'names': ['a'], 'boxes': [4]}
    """
    if isinstance(batch, torch.Tensor):
        return next(values)
    children = children_of(batch)
    if children is None:
        return next(values) if _is_movable(batch) else batch
    items, changed = [], False
    for key, child in children:
        value = with_movables(child, values)
        changed = changed or value is not child
        items.append((key, value))
    return _rebuild(batch, items) if changed else batch


def tensors(batch: Any) -> dict[Path, torch.Tensor]:
    """The tensors of ``batch`` by the path to each, in order."""
    found: dict[Path, torch.Tensor] = {}

    def note(leaf: Any, path: Path) -> Any:
        if isinstance(leaf, torch.Tensor):
            found[path] = leaf
        return leaf

    map_movable(note, batch)
    return found


def find(batch: Any, kind: type) -> dict[Path, Any]:
    """What is of a ``kind`` in ``batch``, by the path to it.

    >>> find({"a": 1, "b": [2.0, 3]}, int)
    {('a',): 1, ('b', 1): 3}
    """
    return dict(_of_kind(batch, kind, ()))


def _of_kind(value: Any, kind: type, path: Path) -> Iterator[tuple[Path, Any]]:
    # No function within `find` that calls itself: it would be in a cycle with what it has found, files of a batch
    # among it, which only Python's cycle collector frees.
    if isinstance(value, kind):
        yield path, value
    elif not isinstance(value, torch.Tensor):
        for key, child in children_of(value) or ():
            yield from _of_kind(child, kind, (*path, key))


def at(batch: Any, path: Path) -> Any:
    """What lies at a path.

    >>> at({"a": 1, "b": [2, 3]}, ("b", 1))
    3
    """
    for key in path:
        batch = dict(children_of(batch) or ())[key]
    return batch


def put(batch: Any, values: Mapping[Path, Any], path: Path = ()) -> Any:
    """``batch`` with ``values`` in the places that their paths name.

    >>> put({"a": 1, "b": [2, 3]}, {("b", 1): "three"})
    {'a': 1, 'b': [2, 'three']}
    """
    if path in values:
        return values[path]
    children = None if isinstance(batch, torch.Tensor) else children_of(batch)
    if not children or not any(inner[: len(path)] == path for inner in values):
        return batch
    return _rebuild(batch, [(key, put(child, values, (*path, key))) for key, child in children])


def take_rows(batch: Any, rows: torch.Tensor, samples: int) -> Any:
    """``batch`` with some of its samples only: of every tensor and list of ``samples`` entries, the ``rows``.

    >>> take_rows((torch.tensor([5, 6, 7]), ["a", "b", "c"], "abc"), torch.tensor([0, 2]), 3)
    (tensor([5, 7]), ['a', 'c'], 'abc')
    """
    if isinstance(batch, torch.Tensor):
        return batch[rows] if batch.ndim and len(batch) == samples else batch
    if isinstance(batch, list) and len(batch) == samples:
        return [batch[row] for row in rows.tolist()]
    children = children_of(batch)
    if children is None:
        return batch
    return _rebuild(batch, [(key, take_rows(child, rows, samples)) for key, child in children])


def _is_movable(value: Any) -> bool:
    """Whether ``value`` knows by itself how to go to a device."""
    return type(value) not in ATOMS and callable(getattr(value, "to", None)) and not isinstance(value, type)


def children_of(batch: Any) -> list[tuple[Hashable, Any]] | None:
    """What a container holds, by index, key or field; None for what is no container."""
    kind = type(batch)
    if kind is dict:
        return list(batch.items())
    if kind is list or kind is tuple:
        return list(enumerate(batch))
    return None if kind in ATOMS else _children_of_others(batch)


def _children_of_others(batch: Any) -> list[tuple[Hashable, Any]] | None:
    # Their own `to` knows better: PackedSequence's lengths stay on the CPU, TensorDict has a batch size and a device.
    if isinstance(batch, PackedSequence) or hasattr(batch, "record_stream"):
        return None
    if isinstance(batch, Mapping):
        return list(batch.items())
    if isinstance(batch, tuple | MutableSequence) and not isinstance(batch, bytearray):
        return list(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type) and not _is_movable(batch):
        names = [field.name for field in dataclasses.fields(batch) if hasattr(batch, field.name)]
        return [(name, getattr(batch, name)) for name in names]
    return None


def _rebuild(batch: Any, items: list[tuple[Any, Any]]) -> Any:
    if type(batch) is dict:
        return dict(items)
    values = [value for _, value in items]
    if type(batch) is list:
        return values
    if isinstance(batch, tuple):
        return _rebuild_tuple(batch, values)
    if isinstance(batch, Mapping) and not isinstance(batch, MutableMapping):
        return type(batch)(dict(items))  # type: ignore[call-arg]
    clone = _copy(batch)
    if isinstance(batch, MutableMapping | MutableSequence):
        for key, value in items:
            clone[key] = value
    else:
        for name, value in items:
            object.__setattr__(clone, name, value)  # a frozen dataclass too
    return clone


def _rebuild_tuple(batch: tuple[Any, ...], values: list[Any]) -> Any:
    try:
        clone = tuple.__new__(type(batch), values)  # whatever a subclass's constructor takes
    except TypeError:  # a result of PyTorch's own, such as torch.max's
        return type(batch)(values)
    if hasattr(batch, "__dict__"):
        vars(clone).update(vars(batch))
    return clone


def _copy(batch: Any) -> Any:
    """A copy that shares no container with ``batch``, so that writing to it leaves the loader's own as it was."""
    clone = copy.copy(batch)
    if getattr(batch, "__dict__", None) is batch:  # a dictionary whose items are its attributes
        clone.__dict__ = clone
        return clone
    for name, value in getattr(clone, "__dict__", {}).items():
        if isinstance(value, dict | list):
            vars(clone)[name] = copy.copy(value)
    return clone
