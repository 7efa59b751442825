"""A batch as a tree: flattened into leaves by their paths, and put back into containers of the same types."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

__all__ = [
    "ATOMS",
    "Path",
    "Tree",
    "children_of",
    "is_in_list",
    "is_movable",
    "map_movable",
    "name_of",
    "retyped",
    "take_rows",
    "tensors",
    "tree_flatten",
    "tree_replace",
    "tree_unflatten",
    "value_at",
    "with_children",
]

Path = tuple[Hashable, ...]

# Types of which a batch may hold hundreds, and which hold nothing: there is no need to ask each for its methods.
ATOMS = frozenset({str, bytes, int, float, bool, type(None)})


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """A container, and its children: each with its key, path and value, and its own node if it is a container."""

    path: Path
    container: Any
    children: list[tuple[Hashable, Path, Any, _Node | None]]


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """A flattened batch: its leaves by their paths, in order, and the containers that they came in.

    >>> tree = tree_flatten({"image": torch.zeros(1), "names": ["a"]})
    >>> tree.leaves
    {('image',): tensor([0.]), ('names', 0): 'a'}
    >>> tree_unflatten(tree.replaced({("image",): 1, ("names",): ["b", "c"]}))
    {'image': 1, 'names': ['b', 'c']}

    A path is made of the indices, keys and field names that lead to a value. Tuples, named tuples, lists, mappings,
    dataclasses and their subclasses are containers; everything else is a leaf.
    """

    leaves: dict[Path, Any]
    root: _Node | None

    @property
    def tensors(self) -> dict[Path, torch.Tensor]:
        return {path: leaf for path, leaf in self.leaves.items() if isinstance(leaf, torch.Tensor)}

    @property
    def movables(self) -> dict[Path, Any]:
        """The tensors, and other objects that have a ``to`` method."""
        return {path: leaf for path, leaf in self.leaves.items() if is_movable(leaf)}

    def replaced(self, values: Mapping[Path, Any]) -> Tree:
        """The same with other values at some paths, of leaves or of whole containers."""
        tree = Tree({**self.leaves, **values}, self.root)
        are_leaves = all(path in self.leaves and not _is_container(value) for path, value in values.items())
        return tree if are_leaves else tree_flatten(tree_unflatten(tree))

    def holder(self, path: Path) -> Any:
        """The container that holds the leaf at ``path``; None if the leaf is the whole batch."""
        node = self.root
        for key in path[:-1]:
            assert node is not None
            node = next(inner for name, _, _, inner in node.children if name == key)
        return None if node is None else node.container

    def walk(self) -> Iterator[tuple[Path, Any]]:
        """All containers and leaves with their paths, outer before inner."""
        if self.root is None:
            yield from self.leaves.items()
        else:
            yield from self._walk(self.root)

    def _walk(self, node: _Node) -> Iterator[tuple[Path, Any]]:
        yield node.path, _rebuilt(node, self.leaves)
        for _, path, _, inner in node.children:
            if inner is None:
                yield path, self.leaves[path]
            else:
                yield from self._walk(inner)


def tree_flatten(batch: Any) -> Tree:
    """Take a batch apart, however deep it is."""
    leaves: dict[Path, Any] = {}
    return Tree(leaves, _flattened(batch, (), leaves))


def tree_unflatten(tree: Tree) -> Any:
    """Put a batch together again, with every container's type; one in which nothing changed is the same object."""
    return tree.leaves[()] if tree.root is None else _rebuilt(tree.root, tree.leaves)


def tree_replace(batch: Any, values: Mapping[Path, Any]) -> Any:
    """``batch`` with other values at some paths.

    >>> tree_replace({"a": 1, "b": [2, 3]}, {("b", 1): "three"})
    {'a': 1, 'b': [2, 'three']}
    """
    return tree_unflatten(tree_flatten(batch).replaced(values))


def map_movable(function: Callable[[Any, Path], Any], batch: Any) -> Any:
    """``batch`` with ``function(leaf, path)`` in the place of each tensor and of each object that has a ``to`` method.

    >>> map_movable(lambda tensor, path: path, {"image": torch.zeros(1), "names": ["a"], "boxes": [torch.ones(2)]})
    {'image': ('image',), 'names': ['a'], 'boxes': [('boxes', 0)]}
    """
    tree = tree_flatten(batch)
    return tree_unflatten(tree.replaced({path: function(leaf, path) for path, leaf in tree.movables.items()}))


def tensors(batch: Any) -> dict[Path, torch.Tensor]:
    """The tensors of ``batch`` by the path to each, in order."""
    return tree_flatten(batch).tensors


def is_movable(value: Any) -> bool:
    """Whether it is a tensor, or another object that moves itself to a device: one with a ``to`` method."""
    if isinstance(value, torch.Tensor):
        return True
    return type(value) not in ATOMS and callable(getattr(value, "to", None)) and not isinstance(value, type)


def retyped(tensor: torch.Tensor, like: torch.Tensor, **known: Any) -> torch.Tensor:
    """``tensor`` with the type and attributes of ``like``; unlike torchvision's ``wrap``, of any shape."""
    if type(like) is torch.Tensor:
        return tensor
    typed: torch.Tensor = tensor.as_subclass(type(like))
    vars(typed).update(vars(like) | known)
    return typed


def name_of(path: Path, of: str = "batch") -> str:
    """A path as a user writes it: ``batch[1]['boxes']``."""
    return f"{of}{''.join(f'[{key!r}]' for key in path)}"


def is_in_list(path: Path) -> bool:
    """Whether a path leads to an entry of a list or tuple within the batch."""
    return len(path) > 1 and isinstance(path[-1], int)


def take_rows(
    batch: Any,
    rows: torch.Tensor,
    samples: int,
    whole: Collection[Path] = (),
    is_listed: Callable[[Path, Any], bool | None] = lambda path, value: None,  # noqa: ARG005
) -> Any:
    """``batch`` with some of its samples only: the ``rows`` of every tensor and list with an entry for each sample.

    >>> take_rows((torch.tensor([5, 6, 7]), ["a", "b", "c"], "abc"), torch.tensor([0, 2]), 3, whole=[(2,)])
    (tensor([5, 7]), ['a', 'c'], 'abc')

    What stands at the paths ``whole`` is left as it is, and what holds it is a container of fields. ``is_listed`` says
    of a path and the list or tuple there whether it has an entry for each sample, or fields; None if it is not known.
    Then one of tensors that each have a row for each sample is one of fields, unless only their sizes differ: of
    tuples, ``default_collate`` makes such lists.
    """
    taking = _Taking(rows, samples, whole, is_listed)
    return taking.of(batch, ())


@dataclass(frozen=True, eq=False)
class _Taking:
    rows: torch.Tensor
    samples: int
    whole: Collection[Path]
    is_listed: Callable[[Path, Any], bool | None]

    def of(self, value: Any, path: Path) -> Any:
        if path in self.whole:
            return value
        children = None if isinstance(value, torch.Tensor) else children_of(value)
        if children is None:
            return self._rows_of(value)
        if not any(each[: len(path)] == path for each in self.whole) and self._has_samples(value, path):
            chosen = (value[row] for row in self.rows.tolist())
            return list(chosen) if isinstance(value, list) else tuple(chosen)
        return with_children(value, [(key, self.of(each, (*path, key))) for key, each in children])

    def _rows_of(self, value: Any) -> Any:
        """Those of a tensor, an array, or a container that is sent whole, such as ``TensorDict``."""
        has_rows = isinstance(value, np.ndarray) or hasattr(type(value), "record_stream")
        if not has_rows or not getattr(value, "ndim", 0) or len(value) != self.samples:
            return value
        if isinstance(value, np.ndarray):
            return value[self.rows.numpy()]
        if not isinstance(value, torch.Tensor):
            return value[self.rows]
        if value.layout is not torch.strided:
            return value.index_select(0, self.rows.to(value.device))
        return retyped(value[self.rows], like=value)

    def _has_samples(self, value: Any, path: Path) -> bool:
        if not (isinstance(value, list) or type(value) is tuple) or len(value) != self.samples:
            return False
        listed = self.is_listed(path, value)
        return _is_of_samples(value, self.samples) if listed is None else listed


def _is_of_samples(value: Any, samples: int) -> bool:
    """Whether entries, as many as there are samples, are those of samples, and not fields, as far as can be told."""
    return not all(_is_column(each, samples) for each in value) or _differ_in_size(value)


def _is_column(value: Any, samples: int) -> bool:
    """Whether it has a row for each sample; boxes and masks of one image, of torchvision's types, have not."""
    if isinstance(value, list):
        return bool(value) and all(_is_column(each, samples) for each in value)
    return type(value) is torch.Tensor and value.ndim > 0 and len(value) == samples


def _differ_in_size(values: Sequence[Any]) -> bool:
    """Whether they are tensors that nothing but their sizes kept from being stacked."""
    if not all(isinstance(value, torch.Tensor) for value in values):
        return False
    return len({(value.dtype, value.ndim) for value in values}) == 1 and len({value.shape for value in values}) > 1


def value_at(batch: Any, path: Path) -> Any:
    """What a path leads to.

    >>> value_at({"views": [1, 2]}, ("views", 1))
    2

    Raises:
        LookupError: it leads nowhere.
    """
    for key in path:
        batch = dict(children_of(batch) or ())[key]
    return batch


def children_of(batch: Any) -> list[tuple[Hashable, Any]] | None:
    """What a container holds, by index, key or field; None for what is no container.

    >>> children_of({"image": [1, 2]}), children_of((3,)), children_of("text")
    ([('image', [1, 2])], [(0, 3)], None)
    """
    kind = type(batch)
    if kind is dict:
        return list(batch.items())
    if kind is list or kind is tuple:
        return list(enumerate(batch))
    return None if kind in ATOMS else _children_of_others(batch)


def with_children(batch: Any, items: list[tuple[Any, Any]]) -> Any:
    """A container of the type of ``batch`` with other children, by index, key or field.

    >>> with_children((1, 2), [(0, "a"), (1, "b")])
    ('a', 'b')
    """
    if type(batch) is dict:
        return dict(items)
    values = [value for _, value in items]
    if type(batch) is list:
        return values
    if isinstance(batch, tuple):
        return _tuple_of(batch, values)
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


def _flattened(value: Any, path: Path, leaves: dict[Path, Any]) -> _Node | None:
    children = None if isinstance(value, torch.Tensor) else children_of(value)
    if children is None:
        leaves[path] = value
        return None
    inner = [(key, (*path, key), child) for key, child in children]
    return _Node(path, value, [(key, at, child, _flattened(child, at, leaves)) for key, at, child in inner])


def _rebuilt(node: _Node, leaves: Mapping[Path, Any]) -> Any:
    if node.path in leaves:  # the whole container was replaced
        return leaves[node.path]
    items, changed = [], False
    for key, path, old, inner in node.children:
        new = leaves[path] if inner is None else _rebuilt(inner, leaves)
        changed = changed or new is not old
        items.append((key, new))
    return with_children(node.container, items) if changed else node.container


def _is_container(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) and children_of(value) is not None


def _children_of_others(batch: Any) -> list[tuple[Hashable, Any]] | None:
    # Their own `to` knows better: PackedSequence's lengths stay on the CPU, TensorDict has a batch size and a device.
    # Asked of their class: a dictionary whose keys are attributes answers any question itself.
    if isinstance(batch, PackedSequence) or hasattr(type(batch), "record_stream"):
        return None
    if isinstance(batch, Mapping):
        return list(batch.items())
    if isinstance(batch, tuple | MutableSequence) and not isinstance(batch, bytearray):
        return list(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type) and not is_movable(batch):
        names = [field.name for field in dataclasses.fields(batch) if hasattr(batch, field.name)]
        return [(name, getattr(batch, name)) for name in names]
    return None


def _tuple_of(batch: tuple[Any, ...], values: list[Any]) -> Any:
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
