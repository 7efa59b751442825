"""Let a batch's boxes, masks and keypoints follow its images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torchvision import tv_tensors

from fastload import kernels
from fastload.structure.tree import Path, find, put
from fastload.targets.boxes import Targets, matrices_of
from fastload.targets.masks import map_masks, resample_masks
from fastload.transforms.lazy import Movement

__all__ = ["followed"]


def followed(batch: Any, images: Mapping[Path, torch.Tensor], moves: list[Movement], send: Callable[[Any], Any]) -> Any:
    """``batch`` with its targets where the pixels have moved to, masks on the device, to which ``send`` brings them.

    ``images`` are those in ``batch`` by their paths, moved already. Boxes and keypoints are few, and stay on the host:
    rows can be dropped there without waiting for the device.
    """
    targets = Targets.of(batch, images)
    if targets is None:
        return batch
    for move in moves:
        matrices, sizes = _map_of(move)
        mirrored = None if move.windows is None else move.windows[:, -2:].bool()
        targets = targets.follow(matrices, move.before, sizes, mirrored)
    batch = targets.replaced(batch)
    masks = find(batch, tv_tensors.Mask)
    batch = put(batch, send(masks))
    for move in moves if masks else ():
        batch = _masks_moved(batch, images, move)
    return batch


def _masks_moved(batch: Any, images: Mapping[Path, torch.Tensor], move: Movement) -> Any:
    if move.windows is not None:
        return resample_masks(batch, move.windows, move.size, kernels.resample, images)
    assert move.warp is not None
    warp = move.warp
    return map_masks(batch, lambda planes, rows: kernels.warp(planes, warp[rows], dtype=torch.uint8), images)


def _map_of(move: Movement) -> tuple[torch.Tensor, torch.Tensor]:
    """Where old coordinates come to lie, float64 (N, 2, 3), and the new sizes, int64 (N, 2)."""
    if move.windows is not None:
        return matrices_of(move.windows, move.size)
    assert move.warp is not None
    centre = move.before.flip(1).double()[:, :, None] / 2
    inverse = move.warp.double().view(-1, 2, 3)
    linear = torch.linalg.inv(inverse[:, :, :2])
    return torch.cat([linear, centre - linear @ (centre + inverse[:, :, 2:])], dim=2), move.before
