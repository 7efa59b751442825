"""Which fields of samples are image files: those that the user names, or those that look like image files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from fastload.data.files import head, is_file, kind_of, may_be_image
from fastload.structure.field import Rule, find_fields
from fastload.structure.tree import Path, children_of, name_of, value_at

__all__ = ["described", "find_files", "stated_files"]

PNG = b"\x89PNG"
COLOUR = 25  # the byte of a PNG that tells its kind of colour
PLANAR = (0, 3)  # kinds of colour of one plane: grey, and numbers of a palette


def find_files(samples: Sequence[Any], besides: Sequence[Path] = ()) -> list[Path]:
    """Where the image files of samples are, ``besides`` other files, as far as it can be told.

    >>> find_files([{"jpg": bytes([0xFF, 0xD8, 0xFF]), "cls": b"3"}])
    [('jpg',)]

    Raises:
        TypeError: there is none, or it cannot be told which are images.
    """
    ranked: dict[int, list[Path]] = defaultdict(list)
    for path, kind in _files(samples[0]):
        if path not in besides:
            ranked[kind].append(path)
    if not ranked:
        raise TypeError(
            f"fl.collate packs image files, and the first of the samples has none: {described(samples[0])}. Let the "
            "data set return a file's bytes or its pathlib.Path, or leave out collate_fn"
        )
    by_rank = [ranked[kind] for kind in sorted(ranked)]
    images = ([path for path in paths if _is_image(samples, path)] for paths in by_rank)
    found = next(filter(None, images), by_rank[0])
    if len(found) > 1:
        _refuse_doubtful(samples, found)
    return found


def stated_files(sample: Any, rule: Rule, argument: str) -> list[Path]:
    """Where the files of samples are that a rule of the user names: the ``argument`` "images" or "masks".

    Raises:
        TypeError: there is none.
    """
    try:
        fields = find_fields(sample, rule)
    except LookupError as error:
        raise TypeError(_misled(sample, rule, argument, str(error.args[0]))) from error
    found = [(*field, *inner) for field in fields for inner in _leaves(value_at(sample, field))]
    wrong = next((path for path in found if not is_file(value_at(sample, path))), None)
    if wrong is not None or not found:
        why = f"{_name(wrong)} is {described(value_at(sample, wrong))}" if wrong is not None else "it has no entry"
        raise TypeError(_misled(sample, rule, argument, why))
    return found


def described(value: Any) -> str:
    """The structure of a value and its types, for an error."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{type(value).__name__} {value.dtype} {tuple(value.shape)}"
    children = children_of(value)
    if children is None:
        return type(value).__name__
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of ({', '.join(described(child) for _, child in children)})"
    return f"{{{', '.join(f'{key!r}: {described(child)}' for key, child in children)}}}"


def _files(value: Any, path: Path = ()) -> Iterator[tuple[Path, int]]:
    """The files that a sample is or holds at any depth, and the rank of the kind of each."""
    is_row = not path and isinstance(value, Mapping)  # with columns "bytes" and "path", for example
    if not is_row and (kind := kind_of(value)) is not None:
        yield path, kind
    else:
        for key, child in children_of(value) or ():
            yield from _files(child, (*path, key))


def _leaves(value: Any) -> Iterator[Path]:
    children = None if is_file(value) else children_of(value)
    if children is None:
        yield ()
    else:
        yield from ((key, *inner) for key, child in children for inner in _leaves(child))


def _is_image(samples: Sequence[Any], path: Path) -> bool:
    """Whether a field looks like an image in any sample, since some files may be damaged."""
    return any(may_be_image(_value_at(sample, path)) for sample in samples)


def _value_at(sample: Any, path: Path) -> Any:
    """What a path leads to; None if it leads nowhere, which is refused where samples are collated."""
    with suppress(LookupError):
        return value_at(sample, path)
    return None


def _refuse_doubtful(samples: Sequence[Any], paths: list[Path]) -> None:
    """Refuse several files of a sample of which some may be labels or masks."""
    names = " and ".join(map(_name, paths))
    rules = {path: path[0] if len(path) == 1 else path for path in paths}
    if not _is_image(samples, paths[0]):
        raise TypeError(
            f"{names} may be files, and none begins as an image or has the name of one: say which is one, such as "
            f"collate_fn=functools.partial(fl.collate, images={rules[paths[0]]!r})"
        )
    mask = next((path for path in paths if _may_be_mask(samples, path)), None)
    if mask is not None:
        image = next(rule for path, rule in rules.items() if path != mask)
        raise TypeError(
            f"{names} are files, and {_name(mask)} may be a mask, whose values are no colours: pass collate_fn="
            f"functools.partial(fl.collate, images={image!r}, masks={rules[mask]!r}); or, if all are images, "
            f"images={list(rules.values())!r}"
        )


def _may_be_mask(samples: Sequence[Any], path: Path) -> bool:
    """Whether a field is named as a mask, or all of its files are PNGs of one plane; of photographs a few are grey."""
    return "mask" in str(path[-1]).lower() or all(_is_planar(_value_at(sample, path)) for sample in samples)


def _is_planar(file: Any) -> bool:
    start = head(file) if is_file(file) else b""
    return start.startswith(PNG) and len(start) > COLOUR and start[COLOUR] in PLANAR


def _name(path: Path) -> str:
    return name_of(path, of="sample")


def _misled(sample: Any, rule: Rule, argument: str, why: str) -> str:
    return f"{argument}={rule!r} must name image files of the samples; {why}; the first sample is {described(sample)}"
