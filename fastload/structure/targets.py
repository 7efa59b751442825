"""Which leaves of a batch describe pixels."""

from __future__ import annotations

from fastload.structure.loaded_types import loaded_types
from fastload.structure.tree import Path, Tree

__all__ = ["TARGETS", "first_target", "has_targets"]

TARGETS = ("BoundingBoxes", "KeyPoints", "Mask")  # of torchvision.tv_tensors


def has_targets(tree: Tree) -> bool:
    """Whether a batch holds boxes, masks or keypoints."""
    return first_target(tree) is not None


def first_target(tree: Tree) -> Path | None:
    """Where the first boxes, mask or keypoints of a batch are; None if there are none.

    >>> import torch
    >>> from torchvision import tv_tensors
    >>> from fastload.structure.tree import tree_flatten
    >>> first_target(tree_flatten((torch.zeros(1, 3, 4, 4), {"mask": tv_tensors.Mask(torch.zeros(4, 4))})))
    (1, 'mask')
    """
    types = loaded_types("torchvision.tv_tensors", *TARGETS)
    return next((path for path, leaf in tree.leaves.items() if isinstance(leaf, types)), None)
