"""What ``print(transform)`` shows: the passes over memory that a composition needs, found by a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from fastload.kernels.spec import Epilogue
from fastload.structure.ragged import Ragged
from fastload.transforms.geometry import HEIGHT, WIDTH, Geometry, Pixels, sizes_of
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.transform import Transform

__all__ = ["described"]

IMAGES, HEIGHT_OF_EACH, WIDTH_OF_EACH, CHANNELS = 256, 375, 500, 3  # of the example that the dry run takes


@dataclass
class PassCost:
    """One pass over memory, or several of the same transforms: their names, and the bytes read and written."""

    names: Sequence[str]
    read: float
    written: float
    count: int = 1

    def __str__(self) -> str:
        passes = f" ({self.count} passes)" if self.count > 1 else ""
        moved = f"reads {self.read / 1e6:.0f} MB, writes {self.written / 1e6:.0f} MB"
        return f"{' + '.join(self.names) or 'store'}{passes}: {moved}"


class Trace(LazyImages):
    """A dry run: passes are noted instead of done."""

    def __init__(self, images: Pixels, store: torch.dtype) -> None:
        super().__init__(images, store=store)
        self.passes: list[PassCost] = []
        self.names: list[str] = []
        self.name = ""

    def note(self, transform: Transform) -> None:
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
            out = _nowhere(geometry.size, epilogue.dtype)
        return self._passed(float(boxes) * CHANNELS * itemsize, out)

    def _colour(self, images: Pixels, epilogue: Epilogue) -> tuple[Pixels, None]:
        out = _nowhere(sizes_of(images), epilogue.dtype) if isinstance(images, Ragged) else images.to(epilogue.dtype)
        return self._passed(_bytes(images), out)

    def _flip_normalize(self, images: torch.Tensor, mirrored: Any, normalization: Any) -> torch.Tensor:  # noqa: ARG002
        out = images.to(normalization.dtype)
        self._passed(_bytes(images), out)
        return out

    def _mirror(self, images: torch.Tensor, mirrored: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        self._passed(_bytes(images), images)
        return images

    def _step(self, kernel: str, *parameters: Any, **options: Any) -> None:  # noqa: ARG002
        read = self.flush_batch()
        self.images = read.to(self.store)
        self.passes.append(PassCost([self.name], _bytes(read), _bytes(self.images)))

    def _passed(self, read: float, out: Pixels) -> tuple[Pixels, None]:
        self.passes.append(PassCost(self.names, read, _bytes(out)))
        return out, None


def described(steps: Sequence[Any], store: torch.dtype) -> str:
    """The passes of a composition's ``steps``, with the bytes that an example batch needs, on any device."""
    images: Pixels = _nowhere(torch.tensor([[HEIGHT_OF_EACH, WIDTH_OF_EACH]] * IMAGES), torch.uint8)
    lines: list[str] = []
    trace = Trace(images, store)
    for step in steps:
        if isinstance(step, Transform) and not hasattr(step, "on_error"):
            trace.note(step)
            continue
        lines += _lines(trace)
        lines.append(f"{type(step).__name__}: files to pixels" if isinstance(step, Transform) else f"{step!r}: yours")
        trace = Trace(trace.images, store)
    lines += _lines(trace)
    header = f"For example {IMAGES} images of {WIDTH_OF_EACH}x{HEIGHT_OF_EACH}:"
    return "\n".join([header, *(f"  {number}. {line}" for number, line in enumerate(lines, 1))])


def _lines(trace: Trace) -> list[str]:
    trace.result()
    merged: list[PassCost] = []
    for names, passes in groupby(
        trace.passes, key=lambda each: each.names
    ):  # a recipe runs one operation after another
        same = list(passes)
        merged.append(PassCost(names, sum(each.read for each in same), sum(each.written for each in same), len(same)))
    return [str(each) for each in merged]


def _nowhere(sizes: torch.Tensor, dtype: torch.dtype) -> Ragged:
    """Images with sizes and without pixels."""
    table = torch.zeros(len(sizes), 6, dtype=torch.int64)
    table[:, 1:3] = sizes
    return Ragged(torch.empty(0, dtype=dtype, device="meta"), table, CHANNELS)


def _bytes(images: Pixels) -> float:
    pixels = images.sizes.prod(1).sum() * CHANNELS if isinstance(images, Ragged) else images.numel()
    return float(pixels) * images.dtype.itemsize
