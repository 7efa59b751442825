"""``collate_vision``: PyTorch's ``default_collate``, which besides keeps the types of ``tv_tensors``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from fastload.structure.loaded_types import loaded_types
from fastload.structure.tree import Path, retyped

__all__ = ["collate_vision", "collates_by_default", "keep_vision_types", "listed_by_default"]


def keep_vision_types(loader: Any) -> None:
    """Let a ``DataLoader`` whose ``collate_fn`` is ``default_collate`` collate by ``collate_vision``.

    Otherwise its masks and boxes would be plain tensors, which do not follow the images. A ``collate_fn`` of the user
    is left alone, and so is a loader in a process that has not imported ``tv_tensors``.
    """
    if isinstance(loader, DataLoader) and loader.collate_fn is default_collate and _types():
        loader.collate_fn = collate_vision


def collates_by_default(loader: Any) -> bool:
    """Whether it is a ``DataLoader`` that was given no ``collate_fn``."""
    return isinstance(loader, DataLoader) and loader.collate_fn in (default_collate, collate_vision)


def listed_by_default(_: Path, value: Sequence[Any]) -> bool | None:
    """Whether a list of a batch that ``default_collate`` made has an entry for each sample: text is not stacked.

    None for tensors that a function of the user's in ``default_collate_fn_map`` has not stacked either.

    >>> masks, names = default_collate([(torch.zeros(2, 2), "cat"), (torch.ones(2, 2), "dog")])
    >>> listed_by_default((), [masks, names]), listed_by_default((1,), names)
    (False, True)
    """
    if isinstance(value[0], str | bytes):
        return True
    stacked = all(each.shape[:1] == (len(value),) for each in value if isinstance(each, torch.Tensor))
    return False if stacked else None


def collate_vision(samples: Sequence[Any]) -> Any:
    """Collate as ``default_collate`` does; a batch of ``tv_tensors`` has the type and attributes of its samples.

    >>> from torchvision.tv_tensors import Mask
    >>> _, mask = collate_vision([(torch.zeros(3, 2, 2), Mask(torch.zeros(2, 2)))] * 2)
    >>> type(mask).__name__, mask.shape
    ('Mask', torch.Size([2, 2, 2]))

    Raises:
        TypeError: boxes or keypoints differ in their ``canvas_size``, ``format`` or ``clamping_mode``.
    """
    # The first type that fits is taken, so those of tv_tensors come before torch.Tensor.
    return collate(samples, collate_fn_map={**dict.fromkeys(_types(), _stacked), **default_collate_fn_map})


def _types() -> tuple[type, ...]:
    return loaded_types("torchvision.tv_tensors", "TVTensor")


def _stacked(tensors: Sequence[torch.Tensor], **_: Any) -> torch.Tensor:
    first = tensors[0]
    batch: torch.Tensor = default_collate([tensor.as_subclass(torch.Tensor) for tensor in tensors])
    if any(type(tensor) is not type(first) for tensor in tensors):
        return batch
    other = next((tensor for tensor in tensors if vars(tensor) != vars(first)), None)
    if other is not None:
        raise TypeError(
            f"{type(first).__name__} of a batch must agree to be one tensor; got {vars(first)} and {vars(other)}: let "
            "the data set resize boxes with their image, or yield lists by collate_fn=lambda samples: "
            "tuple(map(list, zip(*samples)))"
        )
    return retyped(batch, like=first)
