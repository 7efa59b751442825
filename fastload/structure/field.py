"""``Rule``: which field of a sample or batch the user means, by a key, a path, an index, or a function."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from fastload.arguments import quoted
from fastload.structure.tree import Path, children_of, tree_flatten

__all__ = ["Rule", "checked_rule", "find_fields"]

Rule = str | int | tuple[str | int, ...] | list[Any] | Callable[[Any], Any] | None


def checked_rule(name: str, rule: Any) -> Rule:
    """Return ``rule`` if it is one: the argument ``name`` of a user.

    >>> checked_rule("images", ("image", "bytes"))
    ('image', 'bytes')

    Raises:
        TypeError: it is no key, path, index, list of these, or callable.
        ValueError: it is an empty path or list.
    """
    given: Rule = rule
    if rule is None or callable(rule):
        return given
    paths = rule if isinstance(rule, list) else [rule]
    if not all(map(_is_path, paths)):
        raise TypeError(
            f"{name} must be a key such as 'image', an index, a path such as ('image', 'bytes'), a list of these, or a "
            f"function that returns the field; got {quoted(rule)}"
        )
    if not paths or () in paths:
        raise ValueError(f"{name} must have at least one key; got {quoted(rule)}")
    return given


def find_fields(holder: Any, rule: Rule) -> list[Path]:
    """The paths of the fields of ``holder``, a sample or batch, that ``rule`` names.

    >>> find_fields({"image": {"bytes": b"", "path": None}, "label": 3}, ("image", "bytes"))
    [('image', 'bytes')]
    >>> find_fields((b"left", b"right", 3), [0, 1])
    [(0,), (1,)]
    >>> find_fields((3, {"views": [b"", b"one"]}), lambda sample: sample[1]["views"][-1])
    [(1, 'views', 1)]

    A key may be that of a mapping, a field of a dataclass or named tuple, or an index, from the end if it is negative.
    A function returns a field, or a list of fields.

    Raises:
        LookupError: there is no such field; or a function returns what is no field.
    """
    if not callable(rule):
        rules = rule if isinstance(rule, list) else [rule]
        return [_path(holder, each if isinstance(each, tuple) else (each,)) for each in rules]
    found = rule(holder)
    fields = list(tree_flatten(holder).walk())
    paths = [path for path, field in fields if field is found][:1]
    if not paths and isinstance(found, list):  # of fields
        paths = [path for each in found for path, field in fields if field is each]
    if not paths:
        raise LookupError(f"it returns {type(found).__name__}, which is no field")
    return paths


def _path(holder: Any, keys: tuple[Hashable, ...]) -> Path:
    path: Path = ()
    for key in keys:
        place, holder = _child(holder, key)
        path = (*path, place)
    return path


def _child(holder: Any, key: Hashable) -> tuple[Hashable, Any]:
    """A child of a container, with its key in paths, where fields of named tuples are numbers."""
    children = dict(children_of(holder) or ())
    names = getattr(holder, "_fields", ())
    if key in names:
        key = names.index(key)
    elif isinstance(key, int) and key < 0 and isinstance(holder, tuple | list):
        key += len(holder)
    if key not in children:
        raise LookupError(f"there is no {key!r} in {_keys(children)}")
    return key, children[key]


def _keys(children: dict[Hashable, Any]) -> str:
    return f"what has {', '.join(map(repr, children))}" if children else "it"


def _is_path(value: Any) -> bool:
    """Whether it is a key, or a path of keys."""
    keys = value if isinstance(value, tuple) else (value,)
    return all(isinstance(key, str | int) and not isinstance(key, bool) for key in keys)
