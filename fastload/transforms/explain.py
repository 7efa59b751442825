"""What ``print(transform)`` shows: the passes over memory that a composition needs, found by a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from fastload.kernels.spec import Epilogue
from fastload.structure.ragged import Ragged
from fastload.transforms.decode import DecodeJpeg
from fastload.transforms.geometry import HEIGHT, WIDTH, Geometry, Pixels, sizes_of
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.transform import Transform

__all__ = ["described"]

# The batch of the dry run: enough images that the mean of the random crops is steady.
IMAGES, IMAGE_HEIGHT, IMAGE_WIDTH, CHANNELS = 256, 375, 500, 3
IMAGE_BYTES = IMAGES * IMAGE_HEIGHT * IMAGE_WIDTH * CHANNELS


@dataclass
class PassCost:
    """Passes over memory that the same transforms share: the transforms' names in order, bytes read and written."""

    names: Sequence[str]
    read: float
    written: float
    count: int = 1

    def __str__(self) -> str:
        passes = f" ({self.count} passes)" if self.count > 1 else ""
        traffic = f"reads {self.read / IMAGE_BYTES:.2f}, writes {self.written / IMAGE_BYTES:.2f}"
        return f"{' + '.join(self.names) or 'store'}{passes}: {traffic}"


class Trace(LazyImages):
    """A dry run: it lists the passes instead of running them."""

    def __init__(self, images: Pixels, store: torch.dtype) -> None:
        super().__init__(images, store=store)
        self.passes: list[PassCost] = []
        self.names: list[str] = []
        self.name = ""

    def add(self, transform: Transform) -> None:
        """Record a transform, and list the passes that it completes."""
        self.name = type(transform).__name__
        passes = len(self.passes)
        transform.record(self, transform.sample(self.sizes, Key()))
        if not (len(self.passes) > passes and self.passes[-1].names == [self.name]):
            self.names.append(self.name)

    def _run(self, *, last: bool) -> Pixels:
        images = super()._run(last=last)
        self.names = []
        return images

    def _resample(self, images: Pixels, geometry: Geometry, epilogue: Epilogue) -> tuple[Pixels, None]:
        boxes = geometry.windows[:, HEIGHT : WIDTH + 1].prod(1).sum()
        itemsize = images.dtype.itemsize
        if isinstance(geometry.size, tuple):
            out: Pixels = torch.empty(
                len(geometry.windows), CHANNELS, *geometry.size, dtype=epilogue.dtype, device="meta"
            )
        else:
            out = _without_pixels(geometry.size, epilogue.dtype)
        return self._add_pass(float(boxes) * CHANNELS * itemsize, out)

    def _colour(self, images: Pixels, epilogue: Epilogue) -> tuple[Pixels, None]:
        out = (
            _without_pixels(sizes_of(images), epilogue.dtype)
            if isinstance(images, Ragged)
            else images.to(epilogue.dtype)
        )
        return self._add_pass(_bytes(images), out)

    def _flip_normalize(self, images: torch.Tensor, mirrored: Any, normalization: Any) -> torch.Tensor:  # noqa: ARG002
        out = images.to(normalization.dtype)
        self._add_pass(_bytes(images), out)
        return out

    def _mirror(self, images: torch.Tensor, mirrored: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        self._add_pass(_bytes(images), images)
        return images

    def _step(self, kernel: str, *parameters: Any, **options: Any) -> None:  # noqa: ARG002
        read = self.flush_batch()
        self.images = read.to(self.store)
        self.passes.append(PassCost([self.name], _bytes(read), _bytes(self.images)))

    def _add_pass(self, read: float, out: Pixels) -> tuple[Pixels, None]:
        self.passes.append(PassCost(self.names, read, _bytes(out)))
        return out, None


def described(steps: Sequence[Any], store: torch.dtype) -> str:
    """The passes of a composition's ``steps`` and their bytes, as multiples of the bytes of an example batch.

    >>> from fastload.transforms import GaussianBlur, RandomHorizontalFlip, Resize
    >>> print(described([Resize((375, 250)), RandomHorizontalFlip(), GaussianBlur(3)], torch.float32))
    Passes over memory, in bytes per byte of uint8 images of 500x375:
      1. Resize + RandomHorizontalFlip: reads 1.00, writes 2.00
      2. GaussianBlur: reads 2.00, writes 2.00
      3. store: reads 2.00, writes 0.50
    """
    trace = Trace(_without_pixels(torch.tensor([[IMAGE_HEIGHT, IMAGE_WIDTH]] * IMAGES), torch.uint8), store)
    lines: list[str] = []
    for step in steps:
        if isinstance(step, Transform) and not isinstance(step, DecodeJpeg):
            trace.add(step)
            continue
        lines += _lines(trace)
        lines.append("DecodeJpeg: files to pixels" if isinstance(step, DecodeJpeg) else f"{step!r}: called as it is")
        trace = Trace(trace.images, store)
    lines += _lines(trace)
    header = f"Passes over memory, in bytes per byte of uint8 images of {IMAGE_WIDTH}x{IMAGE_HEIGHT}:"
    return "\n".join([header, *(f"  {number}. {line}" for number, line in enumerate(lines, 1))])


def _lines(trace: Trace) -> list[str]:
    """One line for consecutive passes of the same transforms, as a recipe's, which runs its operations in turn."""
    trace.result()
    lines = []
    for names, group in groupby(trace.passes, key=lambda each: each.names):
        passes = list(group)
        read, written = sum(each.read for each in passes), sum(each.written for each in passes)
        lines.append(str(PassCost(names, read, written, len(passes))))
    return lines


def _without_pixels(sizes: torch.Tensor, dtype: torch.dtype) -> Ragged:
    """Images with sizes and without pixels."""
    table = torch.zeros(len(sizes), 6, dtype=torch.int64)
    table[:, 1:3] = sizes
    return Ragged(torch.empty(0, dtype=dtype, device="meta"), table, CHANNELS)


def _bytes(images: Pixels) -> float:
    pixels = images.sizes.prod(1).sum() * CHANNELS if isinstance(images, Ragged) else images.numel()
    return float(pixels) * images.dtype.itemsize
