"""``Geometry``: crop, resize and flip of a batch, as one row of numbers for each image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fastload.structure.ragged import Ragged

__all__ = [
    "BOX",
    "FLIP",
    "OFFSET",
    "VIRTUAL",
    "Geometry",
    "Movement",
    "Pixels",
    "Size",
    "Step",
    "rows_of",
    "size_of",
]

Pixels = torch.Tensor | Ragged  # a batch (N, C, H, W), or images of different sizes
Size = tuple[int, int] | torch.Tensor  # height and width: one for all images, or int64 (N, 2)

# The columns of a window, int32 (N, 10), as ``kernels.resample`` takes it: a box of the image; the size to which the
# box is resized; the place in the resized box where the output begins; and whether the output is mirrored.
TOP, LEFT, HEIGHT, WIDTH, VIRTUAL_HEIGHT, VIRTUAL_WIDTH, OFFSET_Y, OFFSET_X, FLIP_Y, FLIP_X = range(10)
BOX = slice(TOP, WIDTH + 1)
SIDES = slice(HEIGHT, WIDTH + 1)
VIRTUAL = slice(VIRTUAL_HEIGHT, VIRTUAL_WIDTH + 1)
OFFSET = slice(OFFSET_Y, OFFSET_X + 1)
FLIP = slice(FLIP_Y, FLIP_X + 1)


@dataclass
class Geometry:
    """Where the pixels of a pass's output come from: one window for each image, and the size of the output.

    >>> geometry = Geometry.identity((40, 60), 1)
    >>> geometry.crop_resize(np.array([[10, 0, 20, 30]]), (8, 12), "bilinear")
    >>> geometry.flip(x=np.array([True]))
    >>> geometry.size, geometry.windows.tolist()
    ((8, 12), [[10, 0, 20, 30, 8, 12, 0, 0, 0, 1]])

    A window crops and resizes, then crops again, then mirrors. So ``crop_resize`` must come before ``crop``, and only
    once; to the nearest pixel, before ``flip`` too: that of two equally near pixels which is taken depends on the side
    from which they are counted. Windows are NumPy arrays, as random boxes are; ``sampling.py`` says why.
    """

    windows: np.ndarray
    size: Size
    interpolation: str = "nearest"
    fill: float = 0.0
    is_resized: bool = False
    is_cropped: bool = False
    is_flipped: bool = False

    @classmethod
    def identity(cls, size: Size, count: int) -> Geometry:
        """``count`` images of ``size``, unchanged."""
        windows = np.zeros((FLIP_X + 1, count), dtype=np.int32).T  # a column is contiguous: NumPy is fastest so
        windows[:, SIDES] = windows[:, VIRTUAL] = size.numpy() if isinstance(size, torch.Tensor) else size
        return cls(windows, size)

    def takes_crop_resize(self, interpolation: str) -> bool:
        """Whether ``crop_resize`` may still come."""
        return not (self.is_resized or self.is_cropped or (self.is_flipped and interpolation == "nearest"))

    def crop_resize(self, boxes: np.ndarray, size: Size, interpolation: str) -> None:
        """Cut ``boxes``, (N, 4): top, left, height and width, and resize them to ``size``."""
        self.windows[:, BOX] = self._before_flip(boxes)
        self.windows[:, VIRTUAL] = size.numpy() if isinstance(size, torch.Tensor) else size
        self.size, self.interpolation, self.is_resized = size, interpolation, True

    def crop(self, boxes: np.ndarray, size: Size, fill: float) -> None:
        """Cut ``boxes``, (N, 4), whose heights and widths are ``size``; outside of the image the value is ``fill``."""
        self.windows[:, OFFSET] += self._before_flip(boxes)[:, :2]
        self.fill = self.fill if self.is_cropped else fill
        self.size, self.is_cropped = size, True

    def flip(self, x: np.ndarray | None = None, y: np.ndarray | None = None) -> None:
        """Mirror some images, bool (N,), left to right (``x``) or top to bottom (``y``)."""
        for column, chosen in ((FLIP_X, x), (FLIP_Y, y)):
            if chosen is not None:
                self.windows[:, column] ^= chosen
        self.is_flipped = True

    @property
    def flips_y(self) -> np.ndarray:
        """Which images are mirrored top to bottom, bool (N,)."""
        return self.windows[:, FLIP_Y].astype(bool)

    @property
    def flips_x(self) -> np.ndarray:
        """Which images are mirrored left to right, bool (N,)."""
        return self.windows[:, FLIP_X].astype(bool)

    def _before_flip(self, boxes: np.ndarray) -> np.ndarray:
        """Where boxes of the mirrored images lie in the images before that: a window mirrors last."""
        if not self.is_flipped:
            return boxes
        flips = self.windows[:, FLIP]
        sizes = rows_of(self.size, len(boxes)).numpy()
        starts = np.where(flips, sizes - boxes[:, :2] - boxes[:, 2:], boxes[:, :2])
        return np.concatenate([starts, boxes[:, 2:]], axis=1)


Step = Callable[[Geometry], None]


@dataclass(frozen=True)
class Movement:
    """One step of the geometry, for boxes, masks and keypoints to follow: windows, or the inverse maps of a warp.

    Attributes:
        before: sizes of the images before the step, int64 (N, 2).
        size: their size after it.
        step: of a geometry, whose ``windows`` it changes; None for a warp.
        frames: number of consecutive images that are one video; the windows are those of the first frames.
        warp: float32 (N, 6), as ``kernels.warp`` takes them.
        fill: the value of masks outside of the image.
        clips: whether boxes are clipped to the image afterwards, as torchvision does but for flips and resizes.
    """

    before: torch.Tensor
    size: Size
    step: Step | None = None
    frames: int = 1
    warp: torch.Tensor | None = None
    fill: float = 0.0
    clips: bool = True

    @cached_property
    def windows(self) -> torch.Tensor | None:
        """int32 (N, 10), as ``kernels.resample`` takes them; worked out when the first target asks for them."""
        if self.step is None:
            return None
        before = self.before.repeat_interleave(self.frames, 0) if self.frames > 1 else self.before
        alone = Geometry.identity(before, len(before))
        self.step(alone)
        return torch.from_numpy(alone.windows[:: self.frames])


def size_of(images: Pixels) -> Size:
    """Height and width of a batch, or of each image."""
    return images.sizes if isinstance(images, Ragged) else (images.shape[-2], images.shape[-1])


def rows_of(size: Size, count: int) -> torch.Tensor:
    """Height and width of each of ``count`` images, int64 (N, 2)."""
    return size if isinstance(size, torch.Tensor) else torch.from_numpy(np.full((count, 2), size, dtype=np.int64))
