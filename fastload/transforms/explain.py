"""``DryRun``: the passes over memory that transforms need, which ``print(transform)`` shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from fastload.kernels.spec import FIRST_WITH_STATISTICS, ColourProgram, Epilogue, Op
from fastload.structure.ragged import Ragged
from fastload.transforms.decode import DecodeJpeg
from fastload.transforms.for_each_image import is_for_each_image
from fastload.transforms.geometry import SIDES, VIRTUAL, Geometry, Pixels, Size, rows_of, size_of
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages, Normalization
from fastload.transforms.transform import Transform

__all__ = ["DryRun"]

COUNT, HEIGHT, WIDTH = 256, 375, 500  # of the images of a dry run: so many that the mean of random crops is steady


@dataclass(frozen=True)
class PassCost:
    """One pass over memory: the transforms that it does in order, and the bytes read and written for all images."""

    names: tuple[str, ...]
    read: float
    written: float
    has_statistics: bool = False


class DryRun:
    """The passes that steps of a composition take, found without pixels.

    >>> from fastload.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop
    >>> dry_run = DryRun()
    >>> dry_run.together([RandomResizedCrop(224), RandomHorizontalFlip(), Normalize([0.5] * 3, [0.5] * 3)])
    >>> print(dry_run)
    1 pass over memory, in bytes per byte of uint8 images of 500x375:
      1. RandomResizedCrop + RandomHorizontalFlip + Normalize: reads 0.42, writes 1.07

    "statistics" are those of the images that the next pass's contrast needs.

    Attributes:
        images: without pixels, after the steps so far.
        lines: what the steps did: a line, or the costs of one pass, or of several in a row of the same transforms.
        views: the dry runs of several views, if there are any; then ``images`` are those that they are made of.
        numbers: of the views that the images are, which are transformed together, counted from 1.
    """

    def __init__(self, channels: int = 3) -> None:
        self.images: Pixels = torch.empty(COUNT, channels, HEIGHT, WIDTH, dtype=torch.uint8, device="meta")
        self.lines: list[str | list[PassCost]] = []
        self.views: list[DryRun] = []
        self.numbers = range(1, 2)
        self._batch = _bytes(self.images)

    def together(self, transforms: Sequence[Transform], store: torch.dtype = torch.float32) -> None:
        """Add transforms that share passes; between passes values are stored as ``store``."""
        for part in self.parts(transforms):
            part.trace(transforms, store)

    def alone(self, step: Callable[..., Any]) -> None:
        """Add a step that shares no pass: the decoder, several views, or a function of the user."""
        if isinstance(step, DecodeJpeg):
            self.images = _without_pixels(rows_of((HEIGHT, WIDTH), COUNT), torch.uint8, channels=3)
            self.lines.append("DecodeJpeg: files to pixels")
        elif isinstance(step, Transform) and step.makes_views:
            self._make_views(step)
        else:
            does = "in passes of its own" if isinstance(step, Transform) else "called as it is"
            for part in self.parts([step]):
                part.lines.append(f"{step!r}: {does}")

    def parts(self, steps: Sequence[Callable[..., Any]]) -> Iterator[DryRun]:
        """The dry runs that ``steps`` are added to, as ``Batch.parts``: this one, or those of its views."""
        if len(self.numbers) > 1 and not self.views and not all(map(is_for_each_image, steps)):
            self.views = [self._of_views(range(number, number + 1)) for number in self.numbers]
        if not self.views:
            yield self
        for view in self.views:
            yield from view.parts(steps)

    def trace(self, transforms: Sequence[Transform], store: torch.dtype) -> None:
        """Add the passes of transforms to this dry run alone."""
        trace = _Trace(self.images, store)
        problem = ""
        try:
            self.images = trace.run(transforms)
        except Exception as error:  # noqa: BLE001  (a crop may not fit into these images; a user's may read their pixels)
            problem = str(error)
        self.lines += [list(costs) for _, costs in groupby(trace.costs, key=lambda cost: cost.names)]
        if problem:
            self.lines.append(f"{trace.name} cannot be shown: {problem}")

    def shown(self, first: int = 1) -> Iterator[str]:
        """The lines to print; passes are counted from ``first``."""
        for line in self.lines:
            if isinstance(line, str):
                yield f"  {line}"
            else:
                yield self._passes(line, first)
                first += len(line)
        for view in self.views:
            last = view.numbers[-1]
            yield f"  view {last}:" if len(view.numbers) == 1 else f"  views {view.numbers[0]}-{last}:"
            yield from (f"  {line}" for line in view.shown(first))
            first += view.pass_count

    @property
    def pass_count(self) -> int:
        own = sum(len(line) for line in self.lines if isinstance(line, list))
        return own + sum(view.pass_count for view in self.views)

    def __str__(self) -> str:
        passes = f"{self.pass_count} pass{'' if self.pass_count == 1 else 'es'} over memory"
        return "\n".join([f"{passes}, in bytes per byte of uint8 images of {WIDTH}x{HEIGHT}:", *self.shown()])

    def _make_views(self, step: Any) -> None:
        first = 1
        for transform, count in step.runs(self.images):
            view = self._of_views(range(first, first + count))
            transform.explain(view)
            self.views.append(view)
            first += count

    def _of_views(self, numbers: range) -> DryRun:
        """A dry run of some views of these images."""
        view = copy(self)
        view.lines, view.views, view.numbers = [], [], numbers
        return view

    def _passes(self, costs: list[PassCost], first: int) -> str:
        """A line for one pass, or for several in a row of the same transform, as a recipe has them."""
        does = [*costs[0].names, *["statistics"] * any(cost.has_statistics for cost in costs)]
        last, count = first + len(costs) - 1, len(costs)
        number, counted = (first, "") if count == 1 else (f"{first}-{last}", f" ({count} passes)")
        views = len(self.numbers)
        read, written = (
            views * sum(values) / self._batch for values in zip(*((c.read, c.written) for c in costs), strict=True)
        )
        return f"  {number}. {' + '.join(does)}{counted}: reads {read:.2f}, writes {written:.2f}"


class _Trace(LazyImages):
    """Images without pixels, whose passes are noted in ``costs`` by the names of the transforms that share them."""

    def __init__(self, images: Pixels, store: torch.dtype) -> None:
        super().__init__(images, store=store)
        self.costs: list[PassCost] = []
        self.name = ""

    def run(self, transforms: Sequence[Transform]) -> Pixels:
        for transform in transforms:
            self.name = type(transform).__name__
            transform.add_to(self, Key())
        return self.result()

    # What transforms record: whose it is

    def _clear(self) -> None:
        super()._clear()
        self._movers: list[str] = []
        self._colourers: list[str] = []  # of each operation of the colour program
        self._finishers: list[str] = []

    def _move(self, step: Callable[[Geometry], None], mask_fill: float = 0.0, *, clips: bool = True) -> None:
        super()._move(step, mask_fill, clips=clips)
        self._movers.append(self.name)

    def colour(self, ops: torch.Tensor) -> None:
        super().colour(ops)
        self._colourers += [self.name] * ops.shape[1]

    def normalize(self, *arguments: Any, **options: Any) -> None:
        super().normalize(*arguments, **options)
        self._finishers.append(self.name)

    def erase(self, *arguments: Any, **options: Any) -> None:
        super().erase(*arguments, **options)
        self._finishers.append(self.name)

    def mix(self, *arguments: Any, **options: Any) -> None:
        super().mix(*arguments, **options)
        self._finishers.append(self.name)

    def _stack(self) -> Pixels:
        return self.images  # those of a dry run have one size, and stand for images that may not

    # Calls of kernels: what they read and write

    def _resample(self, images: Pixels, geometry: Geometry, epilogue: Epilogue) -> tuple[Pixels, None]:
        windows, sizes = geometry.windows, rows_of(geometry.size, len(images)).numpy()
        used = windows[:, SIDES] * np.minimum(sizes / windows[:, VIRTUAL], 1)  # of each box, what the output shows
        read = float(used.prod(1).sum()) * self._channel_count * images.dtype.itemsize
        out = self._like(geometry.size, epilogue.dtype)
        names = [*self._movers, *self._epilogue_of(epilogue)]
        return self._note(names, read, out, has_statistics=epilogue.statistics), None

    def _colour(self, images: Pixels, epilogue: Epilogue) -> tuple[Pixels, None]:
        out = self._like(size_of(images), epilogue.dtype)
        return self._note(self._epilogue_of(epilogue), _bytes(images), out, has_statistics=epilogue.statistics), None

    def _flip_normalize(
        self,
        images: torch.Tensor,
        mirrored: torch.Tensor | None,  # noqa: ARG002
        normalization: Normalization,
    ) -> torch.Tensor:
        names = [*self._movers, *self._finishers]
        out: torch.Tensor = self._note(names, _bytes(images), images.to(normalization.dtype))
        return out

    def _mirror(self, images: torch.Tensor, mirrored: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        self._note(self._movers, _bytes(images), images)
        return images

    def _step(self, kernel: str, *parameters: Any, **options: Any) -> None:  # noqa: ARG002
        self.images = self._note([self.name], _bytes(self.images), self._like(size_of(self.images), self.store))

    def _note(self, names: list[str], read: float, out: Pixels, *, has_statistics: bool = False) -> Any:
        unnamed = () if has_statistics else (f"store as {str(out.dtype).removeprefix('torch.')}",)
        self.costs.append(PassCost(tuple(dict.fromkeys(names)) or unnamed, read, _bytes(out), has_statistics))
        return out

    def _epilogue_of(self, epilogue: Epilogue) -> list[str]:
        names = [] if epilogue.program is None else self._colourers_of(epilogue.program, epilogue.part)
        is_last = epilogue.scale is not None or epilogue.erase is not None or epilogue.mix is not None
        return names + (self._finishers if is_last else [])

    def _colourers_of(self, program: ColourProgram, part: int) -> list[str]:
        codes = program.ops.numpy()[..., 0]
        part_of = (codes >= FIRST_WITH_STATISTICS).cumsum(axis=1)
        used = (part_of == part) & (codes != Op.NONE)
        return [self._colourers[slot] for slot in np.flatnonzero(used.any(axis=0))]

    def _like(self, size: Size, dtype: torch.dtype) -> Pixels:
        channels = self._channel_count
        if isinstance(size, torch.Tensor):
            return _without_pixels(size, dtype, channels)
        return torch.empty(len(self.images), channels, *size, dtype=dtype, device="meta")


def _without_pixels(sizes: torch.Tensor, dtype: torch.dtype, channels: int) -> Ragged:
    table = torch.zeros(len(sizes), 6, dtype=torch.int64)
    table[:, 1:3] = sizes
    return Ragged(torch.empty(0, dtype=dtype, device="meta"), table, channels)


def _bytes(images: Pixels) -> float:
    pixels = images.sizes.prod(1).sum() * images.channels if isinstance(images, Ragged) else images.numel()
    return float(pixels) * images.dtype.itemsize
