"""Hugging Face's data sets, whose transform is a function of the user around the transform of one image."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

from PIL import Image

from fastload.offload.error import CannotOffloadError
from fastload.offload.place import Place
from fastload.offload.split import split
from fastload.offload.undecoded import contents_of
from fastload.structure.loaded_types import loaded_types

__all__ = ["is_of_hugging_face", "place_in_hugging_face"]


def is_of_hugging_face(dataset: Any) -> bool:
    """Whether it is a ``datasets.Dataset``."""
    return isinstance(dataset, loaded_types("datasets", "Dataset"))


def place_in_hugging_face(dataset: Any, attribute: str) -> Place:
    """Find the transform in the function that was given to ``set_transform`` or ``with_transform``.

    It is the one variable of the function that holds a transform of images. The copy's function has another one there,
    and is given images that are not decoded yet.

    Raises:
        CannotOffloadError: there is no such function, or not just one such variable.
    """
    options = dataset.format
    function = options["format_kwargs"].get("transform") if options["type"] == "custom" else None
    if not isinstance(function, FunctionType):
        raise CannotOffloadError(f"{attribute} has no transform that is a function: call set_transform(function) on it")
    found = {name: value for name, value in _variables(function) if _can_move(value)}
    if len(found) != 1:
        names = ", ".join(found) or "none"
        raise CannotOffloadError(
            f"the function {function.__name__} of {attribute} must use one variable that holds a transform of images; "
            f"it uses {names}"
        )
    ((name, transform),) = found.items()

    def with_other(new: Any) -> Any:
        features = {column: feature for column, feature in dataset.features.items() if _is_image(feature)}
        undecoded = dataset
        for column, feature in features.items():
            undecoded = undecoded.cast_column(column, type(feature)(mode=feature.mode, decode=False))
        return undecoded.with_transform(
            SwappedFunction(function, name, new, features),
            columns=options["columns"],
            output_all_columns=options["output_all_columns"],
        )

    return Place(transform, f"{attribute}: {name} in {function.__name__}", with_other)


class SwappedFunction:
    """A user's function of a batch, with another value of one of its variables; its images come undecoded.

    Args:
        function: the user's.
        name: the variable's.
        value: the other value.
        features: the columns of images, by name, with the feature that decodes each.
    """

    def __init__(self, function: Callable[..., Any], name: str, value: Any, features: dict[str, Any]) -> None:
        self.function, self.name, self.value, self.features = function, name, value, features

    def __call__(self, batch: dict[str, list[Any]]) -> Any:
        for column in self.features.keys() & batch.keys():
            batch[column] = [_opened(record, self.features[column]) for record in batch[column]]
        return _swapped(self.function, self.name, self.value)(batch)


def _swapped(function: Any, name: str, value: Any) -> Callable[..., Any]:
    code, cells = function.__code__, function.__closure__ or ()
    if name in code.co_freevars:
        cells = tuple(
            CellType(value) if free == name else cell for free, cell in zip(code.co_freevars, cells, strict=True)
        )
    swapped = FunctionType(code, {**function.__globals__, name: value}, function.__name__, function.__defaults__, cells)
    swapped.__kwdefaults__ = function.__kwdefaults__
    return swapped


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables from outside that a function, or one within it, uses."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents
    for name in _names(function.__code__) - {*function.__code__.co_freevars}:
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*inner)


def _can_move(value: Any) -> bool:
    """Whether it is an object, no function or class, of which something can be done on the device."""
    if isinstance(value, FunctionType | type) or not callable(value):
        return False
    try:
        return split(value).device is not None
    except TypeError:
        return False


def _is_image(feature: Any) -> bool:
    is_image = isinstance(feature, loaded_types("datasets", "Image"))
    return is_image and feature.decode


def _opened(record: Any, feature: Any) -> Any:
    """The image as the feature decodes it; undecoded if it may stay so."""
    if not isinstance(record, dict):
        return record
    contents, path = record["bytes"], record["path"]
    if contents is not None or os.path.isfile(path):
        image = Image.open(path if contents is None else io.BytesIO(contents))
        if contents_of(image) is not None and feature.mode in (None, "RGB"):
            return image
    return feature.decode_example(record)
