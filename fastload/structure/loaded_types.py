"""Types of packages that take seconds to import, looked up without importing them.

A process that has not imported the package has no object of its types, so there is nothing to import it for.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

__all__ = ["is_plain", "is_vision", "loaded_types"]


def loaded_types(module: str, *names: str) -> tuple[type, ...]:
    """The types of these names in ``module``; none as long as nobody has imported it.

    >>> from decimal import Decimal
    >>> loaded_types("decimal", "Decimal") == (Decimal,), loaded_types("a.module.nobody.imported", "Type")
    (True, ())
    """
    loaded = sys.modules.get(module)
    return tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))


def is_vision(value: Any, *names: str) -> bool:
    """Whether ``value`` has one of these types of ``torchvision.tv_tensors``.

    >>> from torchvision import tv_tensors
    >>> mask = tv_tensors.Mask([[0, 1]])
    >>> is_vision(mask, "BoundingBoxes", "Mask"), is_vision(mask.as_subclass(torch.Tensor), "TVTensor")
    (True, False)
    """
    is_plain = type(value) is torch.Tensor  # as most are, and several are asked for in each batch
    return not is_plain and isinstance(value, loaded_types("torchvision.tv_tensors", *names))


def is_plain(value: Any) -> bool:
    """Whether it is a ``Tensor`` or a ``tv_tensor``, whose attributes are known, and no other subclass."""
    return type(value) is torch.Tensor or is_vision(value, "TVTensor")
