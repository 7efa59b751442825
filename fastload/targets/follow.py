"""Boxes, masks and keypoints of a batch follow its images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fastload.structure.loaded_types import is_vision
from fastload.structure.tree import Path, Tree
from fastload.targets.boxes import Targets, matrices_of
from fastload.targets.layout import IsListed
from fastload.targets.masks import resample_masks, warp_masks
from fastload.targets.rows import PerBox
from fastload.transforms.geometry import Movement

__all__ = ["follow"]


def follow(
    tree: Tree,
    images: Mapping[Path, torch.Tensor],
    movements: list[Movement],
    send: Callable[[dict[Path, Any]], dict[Path, Any]],
    per_box: PerBox = None,
    is_listed: IsListed | None = None,
) -> Tree:
    """A flattened batch whose targets have moved as the pixels of ``images`` did.

    ``images`` are in the batch, by their paths, and have moved already. ``send`` copies masks to the device, where
    their pixels are moved. ``per_box`` names the fields that have a row for each box. ``is_listed`` says of a path and
    the list or tuple there whether it has an entry for each sample, or fields; None if it is not known.

    Boxes and keypoints are few, and stay on the host: there, rows can be dropped without waiting for the device.
    """
    targets = Targets.of(tree, images, is_listed)
    if targets is None:
        return tree
    for movement in movements:
        matrices, sizes = _map_of(movement)
        mirrored = None if movement.windows is None else movement.windows[:, -2:].bool()
        targets = targets.follow(matrices, movement.before, sizes, mirrored, clips=movement.clips)
    tree = targets.replaced(tree, per_box)
    masks = {path: leaf for path, leaf in tree.leaves.items() if is_vision(leaf, "Mask")}
    if masks:
        tree = tree.replaced(send(masks))
        for movement in movements:
            tree = _masks_moved(tree, images, movement, is_listed)
    return tree


def _masks_moved(
    tree: Tree, images: Mapping[Path, torch.Tensor], movement: Movement, is_listed: IsListed | None
) -> Tree:
    if movement.windows is not None:
        return resample_masks(tree, movement.windows, movement.size, images, movement.fill, is_listed)
    assert movement.warp is not None
    return warp_masks(tree, movement.warp, images, movement.fill, is_listed)


def _map_of(movement: Movement) -> tuple[torch.Tensor, torch.Tensor]:
    """Where old coordinates come to lie, float64 (N, 2, 3), and the images' new sizes, int64 (N, 2)."""
    if movement.windows is not None:
        return matrices_of(movement.windows, movement.size)
    assert movement.warp is not None
    centre = movement.before.flip(1).double()[:, :, None] / 2
    inverse = movement.warp.double().view(-1, 2, 3)
    linear = torch.linalg.inv(inverse[:, :, :2])
    return torch.cat([linear, centre - linear @ (centre + inverse[:, :, 2:])], dim=2), movement.before
