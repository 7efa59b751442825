"""Images of different sizes as one thing that a kernel can read: where each lies, and how it is laid out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

import numpy as np
import torch

__all__ = ["Ragged"]

COLUMNS = 6  # address, height, width, and the strides of channel, row and pixel, in elements


class Ragged:
    """N images of C channels, each of its own size, on one device and of one dtype.

    >>> ragged = Ragged.of([torch.zeros(3, 4, 5), torch.ones(3, 2, 6)])
    >>> ragged.sizes
    tensor([[4, 5],
            [2, 6]])
    >>> ragged[1].shape
    torch.Size([3, 2, 6])

    ``table``, int64 (N, 6) on the CPU, tells where each image lies: its address in bytes, its height and width, and the
    strides of channel, row and pixel in elements. ``memory`` keeps what the addresses point to.
    """

    def __init__(self, memory: torch.Tensor | Sequence[torch.Tensor], table: torch.Tensor, channels: int) -> None:
        self.memory = memory
        self.table = table
        self.channels = channels
        first = memory if isinstance(memory, torch.Tensor) else memory[0]
        self.dtype = first.dtype
        self.device = first.device

    @classmethod
    def of(cls, images: torch.Tensor | Sequence[torch.Tensor]) -> Ragged:
        """The images of a batch (N, C, H, W), or of a list of (C, H, W), which must agree in all but height and width.

        Raises:
            TypeError: they do not agree, or are not dense images.
        """
        if isinstance(images, torch.Tensor):
            return cls._of_batch(images)
        described = {(image.ndim, image.shape[:1], image.dtype, image.device) for image in images}
        if len(described) != 1 or next(iter(described))[0] != len("CHW"):
            raise TypeError(
                "the images of a list must be (C, H, W) with the same channels, dtype and device; got "
                + ", ".join(sorted(str((tuple(image.shape), image.dtype, str(image.device))) for image in images)[:4])
            )
        rows = [(image.data_ptr(), *image.shape[1:], *image.stride()) for image in images]
        return cls(list(images), torch.tensor(rows, dtype=torch.int64), images[0].shape[0])

    @classmethod
    def _of_batch(cls, images: torch.Tensor) -> Ragged:
        table = _layout(images.shape, images.stride(), images.itemsize).copy()
        table[:, 0] += images.data_ptr()
        return cls(images, torch.from_numpy(table), images.shape[1])

    def __len__(self) -> int:
        return self.table.shape[0]

    @cached_property
    def sizes(self) -> torch.Tensor:
        """Heights and widths, int64 (N, 2), on the CPU."""
        return self.table[:, 1:3]

    def stacked(self) -> torch.Tensor | Ragged:
        """A batch (N, C, H, W), copied, if all images have one size; else the images as they are.

        >>> Ragged.of([torch.zeros(3, 4, 5), torch.ones(3, 4, 5)]).stacked().shape
        torch.Size([2, 3, 4, 5])
        """
        sizes = self.sizes.numpy()
        return torch.stack(list(self)) if len(sizes) and (sizes == sizes[:1]).all() else self

    def take(self, rows: torch.Tensor) -> Ragged:
        """Some of the images, int64 (M,)."""
        memory = self.memory if isinstance(self.memory, torch.Tensor) else [self.memory[row] for row in rows.tolist()]
        return Ragged(memory, self.table[rows], self.channels)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Image ``index``, (C, H, W), in the memory where it lies."""
        if not isinstance(self.memory, torch.Tensor):
            return self.memory[index]
        return self._views(self.memory, [self.table[index].tolist()])[0]

    def __iter__(self) -> Iterator[torch.Tensor]:
        if not isinstance(self.memory, torch.Tensor):
            return iter(self.memory)
        return iter(self._views(self.memory, self.table.tolist()))

    def _views(self, memory: torch.Tensor, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        start = memory.data_ptr() - memory.storage_offset() * memory.itemsize  # of its storage
        return [
            memory.as_strided((self.channels, height, width), strides, (address - start) // memory.itemsize)
            for address, height, width, *strides in rows
        ]


@lru_cache(maxsize=64)
def _layout(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> np.ndarray:
    """The table of a batch, (N, C, H, W), that begins at address 0."""
    n, _, height, width = shape
    table = np.full((n, COLUMNS), (0, height, width, *strides[1:]), dtype=np.int64)
    table[:, 0] = strides[0] * itemsize * np.arange(n)
    return table
