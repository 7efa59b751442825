"""``flattened``: the steps of a transform, out of whatever holds them."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch

from fastload.arguments import not_a_class, quoted
from fastload.offload.package import package_of
from fastload.offload.torchvision import preset_steps

__all__ = ["flattened"]


def flattened(transform: Any) -> Iterator[Any]:
    """The steps of a ``Compose``, a ``Sequential``, a list, a preset, or an object that only calls one of these.

    Raises:
        TypeError: a step is not callable.
    """
    if isinstance(transform, list | tuple):
        members: list[Any] | None = list(transform)
    else:
        not_a_class("transform must be callable on an image", transform)
        if not callable(transform):
            raise TypeError(f"transform must be callable on an image, or a list of such; got {quoted(transform)}")
        members = _members(transform)
    if members is None:
        yield transform
    else:
        for member in members:
            yield from flattened(member)


def _members(transform: Any) -> list[Any] | None:
    kind, module = type(transform).__name__, type(transform).__module__
    if getattr(transform, "_forward_hooks", None) or getattr(transform, "_forward_pre_hooks", None):
        return None
    if kind == "Compose" and package_of(transform) == "torchvision":
        return list(transform.transforms)
    if kind == "Sequential" and module == "torch.nn.modules.container":
        return list(transform)
    if module == "torchvision.transforms._presets":
        return preset_steps(transform)
    if (name := _only_called(type(transform))) is not None and callable(inner := getattr(transform, name, None)):
        return [inner]
    return None


class _Examples:
    """Methods that only call an attribute, to compare others with."""

    inner: Any

    def with_image(self, image: Any) -> Any:
        return self.inner(image)

    def with_target(self, image: Any, target: Any) -> Any:
        return self.inner(image, target)


def _only_called(kind: type) -> str | None:
    """The attribute that ``__call__`` of a class, or ``forward`` of a module, calls with what it is given."""
    method: Any = kind.__call__
    if method is torch.nn.Module.__call__:
        method = getattr(kind, "forward", None)
    if not isinstance(method, FunctionType):
        return None
    code = method.__code__
    for example in (_Examples.with_image.__code__, _Examples.with_target.__code__):
        if code.co_code == example.co_code and code.co_argcount == example.co_argcount and len(code.co_names) == 1:
            name = code.co_names[0]
            return None if isinstance(getattr(kind, name, None), property) else name
    return None
