"""The planes of masks move as their images do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torchvision.tv_tensors import Mask

from fastload.structure.ragged import Ragged
from fastload.structure.tree import Path, map_movable
from fastload.targets.layout import Layout, Target, of_kind, one_size, retyped

__all__ = ["map_masks", "resample_masks"]


def map_masks(
    batch: Any,
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    images: Mapping[Path, torch.Tensor] | None = None,
) -> Any:
    """``batch`` with its masks moved by ``function(planes, rows)``.

    >>> batch = torch.zeros(2, 3, 4, 4), Mask(torch.arange(32).view(2, 4, 4))
    >>> map_masks(batch, lambda planes, rows: planes[..., :1, :1])[1]
    Mask([[[ 0]],
    <BLANKLINE>
          [[16]]])

    ``planes``: uint8 (M, B, H, W), the masks of one tensor, their values as B bytes each, so that a kernel that takes
    the nearest pixel of uint8 images moves masks of any dtype; what it fills with 0 is 0 then. ``rows``: int64 (M,) on
    the CPU, the image to which each mask belongs. The result is of the same kind: (M, B, any height, any width).
    ``images``: those of ``batch``, by their paths; by default those that ``find_images`` finds.
    """
    layout = Layout.of(batch, images)
    if layout is None:
        return batch
    moved = {target.path: _moved(target, layout.samples, function) for target in of_kind(Mask, list(layout.targets()))}
    return map_movable(lambda leaf, path: moved.get(path, leaf), batch)


def resample_masks(
    batch: Any,
    windows: torch.Tensor,
    size: tuple[int, int] | torch.Tensor,
    resample: Callable[..., Any],
    images: Mapping[Path, torch.Tensor] | None = None,
) -> Any:
    """``batch`` with its masks cut, resized and mirrored as their images are, to the nearest pixel.

    >>> from fastload import kernels
    >>> batch = torch.zeros(1, 3, 2, 2), Mask(torch.tensor([[[1, 2], [3, 4]]]))
    >>> mirror = torch.tensor([[0, 0, 2, 2, 2, 2, 0, 0, 0, 1]], dtype=torch.int32)
    >>> resample_masks(batch, mirror, (2, 2), kernels.resample)[1].tolist()
    [[[2, 1], [4, 3]]]

    Args:
        batch: with ``Mask``s of any dtype, which were on the images' device before.
        windows: int32 (N, 10), of the images, as :func:`fastload.kernels.resample` takes them.
        size: of the images, as that takes it.
        resample: that function.
        images: as :func:`map_masks` takes them.

    Raises:
        ValueError: a mask is batched, and ``size`` differs from image to image.
    """

    def move(planes: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        out = one_size(size[rows], "masks") if isinstance(size, torch.Tensor) else size
        moved: torch.Tensor = resample(Ragged.of(planes), windows[rows], out, interpolation="nearest")[0]
        return moved

    return map_masks(batch, move, images)


def _moved(
    target: Target, samples: int, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    mask = target.value.as_subclass(torch.Tensor)
    *leading, height, width = mask.shape
    count = mask.shape[:-2].numel()
    planes = mask.reshape(-1).view(torch.uint8).view(count, height, width, mask.itemsize).permute(0, 3, 1, 2)
    rows = target.rows(count, samples)
    if not count:  # one more, which tells of what size none come back
        planes, rows = planes.new_zeros(1, *planes.shape[1:]), torch.tensor([target.sample or 0])
    moved = function(planes, rows)[:count]
    values = moved.permute(0, 2, 3, 1).reshape(-1).view(mask.dtype)
    return retyped(values.view(*leading, *moved.shape[2:]), target.value)
