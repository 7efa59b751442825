"""Masks follow their images: each plane of a mask is resampled or warped as the image is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from fastload import kernels
from fastload.structure.ragged import Ragged
from fastload.structure.tree import Path, Tree, name_of, retyped
from fastload.targets.layout import IsListed, Layout, Target, of_kind, one_size

__all__ = ["map_masks", "resample_masks", "warp_masks"]


def map_masks(
    tree: Tree,
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    images: Mapping[Path, torch.Tensor] | None = None,
    fill: float = 0.0,
    is_listed: IsListed | None = None,
) -> Tree:
    """A flattened batch with its masks moved by ``function(planes, rows)``.

    >>> from torchvision.tv_tensors import Mask
    >>> from fastload.structure.tree import tree_flatten
    >>> batch = torch.zeros(2, 3, 4, 4), Mask(torch.arange(32).view(2, 4, 4))
    >>> map_masks(tree_flatten(batch), lambda planes, rows: planes[..., :1, :1]).leaves[(1,)]
    Mask([[[ 0]],
    <BLANKLINE>
          [[16]]])

    ``planes``: uint8 (M, B, H, W), the masks of one tensor, each value as its B bytes. So a kernel that takes the
    nearest pixel of uint8 images moves masks of any dtype. What it fills with 0 becomes ``fill``: planes are XORed with
    its bytes before and after. ``rows``: int64 (M,) on the CPU, the image of each mask. The result has the shape
    (M, B, any height, any width). ``images``: those of the batch, by their paths; by default those that
    ``find_images`` finds. ``is_listed``: whether a list of the batch has an entry for each sample, where that is known.

    Raises:
        ValueError: ``fill`` is not a value of a mask's dtype.
    """
    layout = Layout.of(tree, images, is_listed)
    if layout is None:
        return tree
    masks = of_kind("Mask", list(layout.targets()))
    return tree.replaced({mask.path: _moved(mask, layout.samples, function, fill) for mask in masks})


def resample_masks(
    tree: Tree,
    windows: torch.Tensor,
    size: tuple[int, int] | torch.Tensor,
    images: Mapping[Path, torch.Tensor] | None = None,
    fill: float = 0.0,
    is_listed: IsListed | None = None,
) -> Tree:
    """A flattened batch with its masks cropped, resized and mirrored as their images are, to the nearest pixel.

    >>> from torchvision.tv_tensors import Mask
    >>> from fastload.structure.tree import tree_flatten
    >>> batch = torch.zeros(1, 3, 2, 2), Mask(torch.tensor([[[1, 2], [3, 4]]]))
    >>> mirror = torch.tensor([[0, 0, 2, 2, 2, 2, 0, 0, 0, 1]], dtype=torch.int32)
    >>> resample_masks(tree_flatten(batch), mirror, (2, 2)).leaves[(1,)].tolist()
    [[[2, 1], [4, 3]]]

    Args:
        tree: with masks of any dtype, on the images' device.
        windows: int32 (N, 10), those of the images, as :func:`fastload.kernels.resample` takes them.
        size: that of the images, as the same function takes it.
        images: as :func:`map_masks` takes them.
        fill: the value outside of a mask.
        is_listed: as :func:`map_masks` takes it.

    Raises:
        ValueError: a mask is batched, and ``size`` differs from image to image.
    """

    def move(planes: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        out = one_size(size[rows], "masks") if isinstance(size, torch.Tensor) else size
        moved, _ = kernels.resample(Ragged.of(planes), windows[rows], out, interpolation="nearest")
        assert isinstance(moved, torch.Tensor)  # of one size
        return moved

    return map_masks(tree, move, images, fill, is_listed)


def warp_masks(
    tree: Tree,
    warp: torch.Tensor,
    images: Mapping[Path, torch.Tensor] | None = None,
    fill: float = 0.0,
    is_listed: IsListed | None = None,
) -> Tree:
    """A flattened batch with its masks warped as their images are: float32 (N, 6), as ``kernels.warp`` takes it."""

    def move(planes: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return kernels.warp(planes, warp[rows], dtype=torch.uint8)

    return map_masks(tree, move, images, fill, is_listed)


def _moved(
    target: Target, samples: int, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], fill: float
) -> torch.Tensor:
    mask = target.value.as_subclass(torch.Tensor)
    *leading, height, width = mask.shape
    count = mask.shape[:-2].numel()
    planes = mask.reshape(-1).view(torch.uint8).view(count, height, width, mask.itemsize).permute(0, 3, 1, 2)
    rows = torch.from_numpy(target.rows(count, samples))
    if not count:  # one more, which tells of what size none come back
        planes, rows = planes.new_zeros(1, *planes.shape[1:]), torch.tensor([target.sample or 0])
    if fill:
        outside = _filled(mask, fill, name_of(target.path)).view(torch.uint8).view(1, -1, 1, 1)
        moved = function(planes ^ outside, rows)[:count] ^ outside
    else:
        moved = function(planes, rows)[:count]
    values = moved.permute(0, 2, 3, 1).reshape(-1).view(mask.dtype)
    return retyped(values.view(*leading, *moved.shape[2:]), target.value)


def _filled(mask: torch.Tensor, fill: float, name: str) -> torch.Tensor:
    """One element of a mask that is ``fill``."""
    if not (mask.dtype.is_floating_point or mask.dtype is torch.bool):
        limits = torch.iinfo(mask.dtype)
        if not limits.min <= fill <= limits.max:
            raise ValueError(
                f"fill of masks must be from {limits.min} to {limits.max}, as {name} is {mask.dtype}; got {fill:g}"
            )
    return torch.full((1,), fill, dtype=mask.dtype, device=mask.device)
