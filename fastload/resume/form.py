"""``check_form``: whether a value has the form of a ``PrefetchLoader``'s state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["check_form"]

EPOCHS = 2**32  # as many as transforms can draw for
MISSING = object()


def check_form(state: Any, version: int) -> None:
    """Refuse what is not the state of a ``PrefetchLoader``.

    >>> check_form({"format": 2, "epoch": -1}, 2)
    Traceback (most recent call last):
    ValueError: the state's 'epoch' must be an int from 0 to 4294967295; got -1

    Raises:
        TypeError: ``state`` is no mapping.
        ValueError: it has another version, lacks an entry, or has one of a wrong type or value.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"the state must be a mapping from PrefetchLoader.state_dict(); got {type(state).__name__}")
    if state.get("format") != version:
        raise ValueError(
            f"the state must be one of PrefetchLoader.state_dict() of format {version}; got format "
            f"{state.get('format')!r} with keys {sorted(map(str, state))}: take it with this version of fastload"
        )
    for path, (wanted, is_right) in FORM.items():
        value = _entry(state, path)
        if value is MISSING or not is_right(value):
            got = "none" if value is MISSING else repr(value)
            name = "".join(f"[{key!r}]" for key in path) if len(path) > 1 else repr(path[0])
            raise ValueError(f"the state's {name} must be {wanted}; got {got}")


def _entry(state: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The entry, or MISSING; None if it is in an entry that is None."""
    entry: Any = state
    for key in path:
        entry = None if entry is None else entry.get(key, MISSING)
    return entry


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.uint8


def _is_default_generator(value: Any) -> bool:
    if value is None:
        return True
    try:
        torch.Generator().set_state(value.cpu())
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True


# What each entry must be, in words and as a check, outer ones first.
COUNT = "an int of at least 0", _is_count
MAPPING = "a mapping", _is_mapping
GENERATOR = "None or the state of a generator of the CPU", _is_default_generator
FORM: dict[tuple[str, ...], tuple[str, Callable[[Any], bool]]] = {
    ("epoch",): (f"an int from 0 to {EPOCHS - 1}", lambda value: _is_count(value) and value < EPOCHS),
    ("batches",): COUNT,
    ("drawn",): COUNT,
    ("samples",): COUNT,
    ("loader",): ("the state of the wrapped loader, or None", lambda _: True),
    ("checksum",): ("None or an int", lambda value: value is None or isinstance(value, int)),
    ("in_order",): ("True or False", lambda value: isinstance(value, bool)),
    ("finished",): ("None or a mapping", lambda value: value is None or _is_mapping(value)),
    ("finished", "epoch"): (COUNT[0], lambda value: value is None or _is_count(value)),
    ("finished", "batches"): (COUNT[0], lambda value: value is None or _is_count(value)),
    ("start",): MAPPING,
    ("start", "default_generator"): GENERATOR,
    ("start", "generators"): (
        "a list of states of generators",
        lambda value: isinstance(value, list) and all(map(_is_bytes, value)),
    ),
    ("start", "sampler_epoch"): ("None or an int", lambda value: value is None or isinstance(value, int)),
    ("start", "kept_workers"): ("True or False", lambda value: isinstance(value, bool)),
    ("default_generator",): GENERATOR,
    ("made_as",): MAPPING,
    ("made_as", "ranks"): ("an int of at least 1", lambda value: _is_count(value) and value > 0),
    ("made_as", "batch_size"): (
        "None or an int of at least 1",
        lambda value: value is None or (_is_count(value) and value > 0),
    ),
}
