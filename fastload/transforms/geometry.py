"""Where the pixels of a batch come from: crop, resize and flip as one row of numbers for each image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fastload.structure.ragged import Ragged

__all__ = [
    "FLIP_X",
    "FLIP_Y",
    "HEIGHT",
    "OFFSET_X",
    "OFFSET_Y",
    "VIRTUAL_WIDTH",
    "WIDTH",
    "Geometry",
    "Movement",
    "Pixels",
    "Size",
    "rows_of",
    "sizes_of",
    "unflipped",
    "whole",
    "windows_of",
]

Pixels = torch.Tensor | Ragged  # a batch (N, C, H, W), or images of different sizes
Size = tuple[int, int] | torch.Tensor  # height and width: one for all images, or int64 (N, 2)

# The columns of a window, int32 (N, 10), as ``kernels.resample`` takes it: a box of the source; the size to which that
# box is resized; where in the resized box the output begins; and whether the output is mirrored along y and x.
TOP, LEFT, HEIGHT, WIDTH, VIRTUAL_HEIGHT, VIRTUAL_WIDTH, OFFSET_Y, OFFSET_X, FLIP_Y, FLIP_X = range(10)


@dataclass
class Geometry:
    """Where each output pixel of the next pass comes from: one window for each image, and the output's size.

    Windows are NumPy arrays, as random boxes are; ``sampling.py`` says why.
    """

    windows: np.ndarray
    size: Size
    interpolation: str = "nearest"
    fill: float = 0.0
    resized: bool = False
    moved: bool = False  # anything but mirrored

    @classmethod
    def identity(cls, images: Pixels) -> Geometry:
        """Every pixel from where it is."""
        sizes = sizes_of(images)
        return cls(
            windows_of(whole(sizes), sizes),
            sizes if isinstance(images, Ragged) else (images.shape[-2], images.shape[-1]),
        )

    @property
    def mirrors(self) -> np.ndarray:
        """Whether each image is mirrored along y and x, bool (N, 2)."""
        return self.windows[:, FLIP_Y:].astype(bool)


@dataclass(frozen=True)
class Movement:
    """How pixels moved, for boxes, masks and keypoints to follow: by windows, or by a warp's inverse maps.

    ``before``, int64 (N, 2): the sizes of the images before; the rest is as the kernels take it.
    """

    before: torch.Tensor
    size: Size
    windows: torch.Tensor | None = None
    warp: torch.Tensor | None = None


def sizes_of(images: Pixels) -> torch.Tensor:
    """Heights and widths, int64 (N, 2), on the CPU."""
    if isinstance(images, Ragged):
        return images.sizes
    return rows_of((images.shape[-2], images.shape[-1]), len(images))


def windows_of(boxes: np.ndarray, size: Size) -> np.ndarray:
    """What cuts out ``boxes`` and resizes them to ``size``, int32 (N, 10)."""
    windows = np.zeros((len(boxes), 10), dtype=np.int32)
    windows[:, TOP : WIDTH + 1] = boxes
    windows[:, VIRTUAL_HEIGHT : VIRTUAL_WIDTH + 1] = size if isinstance(size, tuple) else size.numpy()
    return windows


def whole(sizes: torch.Tensor) -> np.ndarray:
    boxes = np.zeros((len(sizes), 4), dtype=np.int32)
    boxes[:, HEIGHT:] = sizes.numpy()
    return boxes


def rows_of(size: Size, count: int) -> torch.Tensor:
    return size if isinstance(size, torch.Tensor) else torch.from_numpy(np.full((count, 2), size, dtype=np.int64))


def unflipped(boxes: np.ndarray, sizes: torch.Tensor, mirrors: np.ndarray) -> np.ndarray:
    """Boxes of mirrored images, where they lie in the images before: windows mirror last."""
    starts = np.where(mirrors, sizes.numpy() - boxes[:, :2] - boxes[:, 2:], boxes[:, :2])
    return np.concatenate([starts, boxes[:, 2:]], axis=1)
