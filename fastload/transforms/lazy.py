"""``LazyImages``: images and the work recorded on them, done in as few passes over memory as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fastload import kernels
from fastload.kernels.spec import ColourProgram, Epilogue, Erase, Mix, Op
from fastload.structure.ragged import Ragged
from fastload.structure.tree import Tree
from fastload.transforms.fill import Fill
from fastload.transforms.geometry import Geometry, Movement, Pixels, Size, Step, rows_of, size_of

__all__ = ["LazyImages", "Normalization", "one_size"]

BLACK = Fill(images=0.0, masks=0.0)
UNMOVED = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0])  # a row of an affine map for x, and one for y


class LazyImages:
    """A batch of images and the work recorded on it, which is done later and together (as in Polars' LazyFrame).

    >>> images = LazyImages(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    >>> images.flip(horizontal=torch.tensor([True]))
    >>> images.normalize(mean=[0.5], std=[0.5])
    >>> images.result()
    tensor([[[[ 1., -1.]]]])

    One pass over memory does geometry, colours, normalisation, erasing and mixing, in this order. Work recorded in this
    order collects. Work out of this order first runs what was collected (:meth:`flush`), and so begins another pass.
    Each colour operation that needs a statistic of the image (contrast), and mixing after geometry, takes one more
    pass. A warp, blur, sharpening or equalisation is a pass of its own.

    Args:
        images: (N, C, H, W), or images of different sizes.
        store: dtype of the values between passes, which are from 0 to 1.
        frames: number of consecutive images that are one video and share its random parameters; 1 for images.

    Attributes:
        dtype: of the result, as long as no ``normalize`` is pending, which has its own.
        moves: each step of the geometry, for targets to follow.
        mixes: functions that mix the labels of a flattened batch as its images are mixed.
        recording: the name of the transform that records, for errors.
    """

    def __init__(self, images: Pixels, *, store: torch.dtype = torch.float32, frames: int = 1) -> None:
        self.images = images
        self.store = store
        self.frames = frames
        self.dtype = images.dtype
        self.moves: list[Movement] = []
        self.mixes: list[Callable[[Tree], Tree]] = []
        self.recording = "this transform"
        self._count = len(images)
        self._channel_count = images.channels if isinstance(images, Ragged) else images.shape[1]
        self._resize(size_of(images))
        self._rows: np.ndarray | None = None  # of the samples, those that work is recorded for; None for all
        self._clear()

    def _resize(self, size: Size) -> None:
        self._sizes = rows_of(size, self._count)  # of all images, int64 (N, 2)
        self._all_sizes = self._sizes if self.frames == 1 else self._sizes[:: self.frames]  # of all samples

    def _clear(self) -> None:
        self._geometry: Geometry | None = None
        self._ops: list[torch.Tensor] = []
        self._normalization: Normalization | None = None
        self._erase: Erase | None = None
        self._mix: Mix | None = None

    @property
    def are_bytes(self) -> bool:
        """Whether values at this point are those of bytes, and no normalisation has made others of them."""
        return self.dtype is torch.uint8 and self._normalization is None

    @property
    def sizes(self) -> torch.Tensor:
        """Heights and widths of the samples after all recorded work, int64 (N, 2); within :meth:`only`, of its rows."""
        return self._all_sizes if self._rows is None else self._all_sizes[self._rows]

    # What transforms record

    @contextmanager
    def only(self, rows: torch.Tensor) -> Iterator[None]:
        """Record work for some samples, int64 (M,), as if there were no others, which stay as they are.

        >>> images = LazyImages(torch.tensor([[[[0, 255]]], [[[0, 255]]]], dtype=torch.uint8))
        >>> with images.only(torch.tensor([0])):
        ...     images.flip(horizontal=torch.tensor([True]))
        >>> images.result().flatten(1)
        tensor([[255,   0],
                [  0, 255]], dtype=torch.uint8)

        Within another such context, rows are counted among those of the other.
        """
        outer = self._rows
        self._rows = rows.numpy() if outer is None else outer[rows.numpy()]
        try:
            yield
        finally:
            self._rows = outer

    def crop_resize(
        self, boxes: torch.Tensor, size: Size, interpolation: str = "bilinear", *, clips: bool = True
    ) -> None:
        """Cut ``boxes``, int32 (N, 4): top, left, height, width, and resize them to ``size``, one for all or (N, 2).

        ``clips`` as of :class:`Movement`.
        """
        cut, each = self._boxes(boxes), self._size(size, len(boxes))
        self._flush_unless(lambda geometry: geometry.takes_crop_resize(interpolation))
        self._move(lambda geometry: geometry.crop_resize(cut, each, interpolation), clips=clips)

    def crop(self, boxes: torch.Tensor, fill: Fill = BLACK) -> None:
        """Cut ``boxes``, int32 (N, 4), of one size or several; outside of the image the value is ``fill``."""
        cut = self._boxes(boxes)
        value = self._in_units(fill.images or 0.0)
        inside = bool((cut[:, :2] >= 0).all() and (cut[:, :2] + cut[:, 2:] <= self._sizes.numpy()).all())
        self._flush_unless(lambda geometry: inside or not geometry.is_cropped)
        size = one_size(torch.from_numpy(cut[:, 2:].astype(np.int64)))
        self._move(lambda geometry: geometry.crop(cut, size, value), fill.masks)

    def flip(self, horizontal: torch.Tensor | None = None, vertical: torch.Tensor | None = None) -> None:
        """Mirror some images, bool (N,), left to right, top to bottom, or both."""
        if self._erase is not None or self._mix is not None:
            self.flush()
        # Colours and normalisation do not depend on the place, so a flip may join them in one pass.
        x, y = (None if chosen is None else self._each(chosen, False).numpy() for chosen in (horizontal, vertical))
        self._move(lambda geometry: geometry.flip(x, y), clips=False)

    def colour(self, ops: torch.Tensor) -> None:
        """Apply colour operations in order, float32 (N, S, 2): each a code (``Op``) and an amount."""
        if self._normalization is not None or self._erase is not None or self._mix is not None:
            self.flush()
        self._ops.append(self._each(ops, Op.NONE))

    def normalize(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
        full_scale: float = 1.0,
    ) -> None:
        """``(value - mean) / std``, of each channel or of all; floating-point images lie in 0 to ``full_scale``."""
        self._require_all("normalised")
        if not (self.dtype is torch.uint8 or self.dtype.is_floating_point):
            raise TypeError(f"images must be uint8 (0 to 255) or floating-point (0 to 1); got {self.dtype}")
        mean, std = (_channels(tuple(values), self._channel_count) for values in (mean, std))
        if len(mean) != self._channel_count:
            shape = (
                tuple(self.images.shape) if isinstance(self.images, torch.Tensor) else (self.images.channels, "H", "W")
            )
            raise TypeError(
                f"mean and std have {len(mean)} channels, so images must be (N, {len(mean)}, H, W) or "
                f"(N, H, W, {len(mean)}); got images of shape {shape}"
            )
        if self._normalization is not None or self._mix is not None:
            self.flush()
        scale, bias = _affine(mean, std, 1.0 if self.dtype is torch.uint8 else full_scale)
        if self._erase is not None:  # recorded before: the erased values are normalised too
            self._erase = replace(
                self._erase,
                scale=tuple(noise * s for noise, s in zip(_channels(self._erase.scale, scale), scale, strict=True)),
                bias=tuple(
                    value * s + b for value, s, b in zip(_channels(self._erase.bias, scale), scale, bias, strict=True)
                ),
            )
        self._normalization = Normalization(scale, bias, dtype, memory_format)

    def erase(
        self, boxes: torch.Tensor, seeds: torch.Tensor, scale: tuple[float, ...], bias: tuple[float, ...]
    ) -> None:
        """Overwrite ``boxes``, int32 (N, 4), with ``bias + scale * noise``, in units of the values at this point."""
        if self._erase is not None or self._mix is not None:
            self.flush()
        if self.are_bytes:
            scale, bias = (tuple(value / 255 for value in values) for values in (scale, bias))
        count = self._channel_count
        if not {len(scale), len(bias)} <= {1, count}:
            raise ValueError(f"value must be one number, or one for each of {count} channels; got {len(bias)} numbers")
        self._erase = Erase(self._each(boxes, 0), self._each(seeds, 0), _channels(scale, count), _channels(bias, count))

    def mix(self, mix: Mix, labels: Callable[[Tree], Tree]) -> None:
        """Mix each image with its partner; ``labels`` is a function that mixes the labels of their batch."""
        self._require_all("mixed")
        if self.frames > 1:
            raise TypeError(f"MixUp and CutMix take images (N, C, H, W); got videos of {self.frames} frames")
        if self._mix is not None:
            self.flush()
        if self._geometry is None:
            self._stack()
        self._mix = mix
        self.mixes.append(labels)

    def warp(self, matrices: torch.Tensor, interpolation: str = "nearest", fill: Fill = BLACK) -> None:
        """Map each image by an inverse affine matrix about its centre, float32 (N, 6): a row for x and one for y."""
        self.flush_batch()
        value = None if fill.images is None else self._in_units(fill.images)
        each, sizes = self._each(matrices, UNMOVED), self._all_sizes
        self._step("warp", each, interpolation=interpolation, fill=value)
        self.moves.append(Movement(sizes, sizes, warp=each[:: self.frames], fill=fill.masks))

    def blur(self, sigmas: torch.Tensor, kernel_size: int) -> None:
        """Blur each image by a Gaussian of its sigma in pixels, float32 (N,); 0 leaves it unchanged."""
        self.flush_batch()
        self._step("blur", self._each(sigmas, 0), kernel_size)

    def sharpen(self, factors: torch.Tensor) -> None:
        """Change each image's sharpness by its factor, float32 (N,); 1 leaves it unchanged."""
        self.flush_batch()
        self._step("sharpen", self._each(factors, 1))

    def equalize(self, chosen: torch.Tensor) -> None:
        """Equalise the histograms of the images ``chosen``, bool (N,)."""
        self.flush_batch()
        self._step("equalize", self._each(chosen, False), of_bytes=self.are_bytes)

    # How it is done

    def flush(self, *, last: bool = False) -> Pixels:
        """Do the recorded work now, and return the images; ``last``: in their final dtype."""
        if self._pending or (last and self.images.dtype is not self.dtype):
            self.images = self._run(last=last)
            self.dtype = self._normalization.dtype if self._normalization else self.dtype
            self._clear()
        return self.images

    def result(self) -> Pixels:
        """The images after all recorded work, in their final dtype."""
        return self.flush(last=True)

    def flush_batch(self) -> torch.Tensor:
        """Do the recorded work now, and return the images as one batch.

        Raises:
            TypeError: the images have different sizes.
        """
        self.flush()
        images = self._stack()
        if isinstance(images, Ragged):
            some = list(dict.fromkeys(map(tuple, self._sizes.tolist())))[:3]
            raise TypeError(
                f"{self.recording} takes images of one size; got sizes such as {', '.join(map(str, some))}: crop or "
                "resize them first"
            )
        return images

    def _stack(self) -> Pixels:
        """Make one batch of images in a list that all have one size, and return the images."""
        if isinstance(self.images, Ragged):
            self.images = self.images.stacked()
        return self.images

    def _run(self, *, last: bool) -> Pixels:
        if (simple := self._run_simple(last=last)) is not None:
            return simple
        program = self._program()
        least = 2 if self._mix is not None and self._geometry is not None else 1
        passes = least if program is None else max(program.parts, least)
        images, epilogues = self.images, self._epilogues(program, passes, last=last)
        for part, epilogue in enumerate(epilogues):
            if part == 0 and self._geometry is not None:
                images, statistics = self._resample(images, self._geometry, epilogue)
            else:
                images, statistics = self._colour(images, epilogue)
            if part + 1 < passes:
                epilogues[part + 1].previous = statistics
        return images

    def _run_simple(self, *, last: bool) -> torch.Tensor | None:
        """The faster ways to flip left to right, normalise, or both, a batch of any channels; None if there is more."""
        geometry, images = self._geometry, self.images
        moved = geometry is not None and (geometry.is_resized or geometry.is_cropped or bool(geometry.flips_y.any()))
        if moved or self._ops or self._erase or self._mix or not isinstance(images, torch.Tensor):
            return None
        mirrored = None if geometry is None else torch.from_numpy(geometry.flips_x)
        if self._normalization is not None:
            return self._flip_normalize(images, mirrored, self._normalization)
        converts = images.dtype is not self.dtype if last else images.dtype is torch.uint8
        if mirrored is None or converts:
            return None
        return self._mirror(images, mirrored)

    def _epilogues(self, program: ColourProgram | None, passes: int, *, last: bool) -> tuple[Epilogue, ...]:
        """Those of all passes, but for the statistics that each gets from the pass before."""
        epilogues: tuple[Epilogue, ...] = (self._last_epilogue(program, passes - 1, last=last),)
        for part in reversed(range(passes - 1)):
            statistics = program is not None and program.needs_statistics(part + 1)
            one = Epilogue(self.store, program=program, part=part, statistics=statistics, following=epilogues)
            epilogues = (one, *epilogues)
        return epilogues

    def _last_epilogue(self, program: ColourProgram | None, part: int, *, last: bool) -> Epilogue:
        alike: dict[str, Any] = {"program": program, "part": part, "erase": self._erase, "mix": self._mix}
        if (normalization := self._normalization) is None:
            return Epilogue(**alike, dtype=self.dtype if last else self.store)
        return Epilogue(
            **alike,
            scale=normalization.scale,
            bias=normalization.bias,
            dtype=normalization.dtype,
            memory_format=normalization.memory_format,
        )

    def _program(self) -> ColourProgram | None:
        if not self._ops:
            return None
        recorded = [ops.numpy() for ops in self._ops]
        ops = recorded[0] if len(recorded) == 1 else np.concatenate(recorded, axis=1)
        return ColourProgram(torch.from_numpy(ops))

    # Calls of kernels, which a dry run (explain.py) overrides

    def _resample(self, images: Pixels, geometry: Geometry, epilogue: Epilogue) -> tuple[Pixels, torch.Tensor | None]:
        ragged = images if isinstance(images, Ragged) else Ragged.of(images)
        return kernels.resample(
            ragged,
            torch.from_numpy(geometry.windows),
            geometry.size,
            interpolation=geometry.interpolation,
            fill=geometry.fill,
            clip=geometry.interpolation == "bicubic" and self.dtype is torch.uint8,  # floats go beyond 0 to 1
            epilogue=epilogue,
        )

    def _colour(self, images: Pixels, epilogue: Epilogue) -> tuple[Pixels, torch.Tensor | None]:
        return kernels.colour(images, epilogue)

    def _flip_normalize(
        self, images: torch.Tensor, mirrored: torch.Tensor | None, normalization: Normalization
    ) -> torch.Tensor:
        flip = None if mirrored is None else kernels.upload(images.device, mirrored)[0]
        uint8 = images.dtype is torch.uint8
        run = kernels.flip_normalize if uint8 else kernels.reference.flip_normalize
        std = [1 / scale for scale in normalization.scale]
        mean = [-bias * s for bias, s in zip(normalization.bias, std, strict=True)]
        return run(
            images if uint8 else images.float() * 255,
            mean,
            std,
            flip,
            dtype=normalization.dtype,
            memory_format=normalization.memory_format,
        )

    def _mirror(self, images: torch.Tensor, mirrored: torch.Tensor) -> torch.Tensor:
        (chosen,) = kernels.upload(images.device, mirrored)
        return torch.where(chosen.view(-1, 1, 1, 1), images.flip(-1), images)

    def _step(self, kernel: str, *parameters: Any, **options: Any) -> None:
        self.images = getattr(kernels, kernel)(self.images, *parameters, dtype=self.store, **options)

    # Bookkeeping

    @property
    def _pending(self) -> bool:
        return bool(
            self._geometry is not None
            or self._ops
            or self._normalization is not None
            or self._erase is not None
            or self._mix is not None
        )

    def _each(self, parameters: torch.Tensor, others: torch.Tensor | float) -> torch.Tensor:
        """A row for each image, from those of the samples that work is recorded for, and ``others`` for the others."""
        if self._rows is not None:
            given = parameters.numpy()
            every = np.empty((len(self._all_sizes), *given.shape[1:]), dtype=given.dtype)
            every[:] = others
            every[self._rows] = given
            parameters = torch.from_numpy(every)
        return parameters.repeat_interleave(self.frames, 0) if self.frames > 1 else parameters

    def _boxes(self, boxes: torch.Tensor) -> np.ndarray:
        """The box of each image, int32 (N, 4); that of the others is all of the image."""
        whole = 0 if self._rows is None else torch.cat([torch.zeros_like(self._all_sizes), self._all_sizes], dim=1)
        every: np.ndarray = self._each(boxes, whole).numpy()
        return every

    def _size(self, size: Size, count: int) -> Size:
        """The size of each image, of one for ``count`` samples or one for each; the others keep theirs."""
        if isinstance(size, tuple) and self._rows is None:
            return size
        return one_size(self._each(rows_of(size, count), self._all_sizes))

    def _require_all(self, done: str) -> None:
        if self._rows is not None:
            raise TypeError(f"all images of a batch are {done}, or none: put the transform behind RandomApply")

    def _flush_unless(self, fits: Callable[[Geometry], bool]) -> None:
        """Begin another pass unless a crop can still join this one: nothing came after geometry, which ``fits``."""
        later = self._ops or self._normalization or self._erase or self._mix
        if later or (self._geometry is not None and not fits(self._geometry)):
            self.flush()

    def _in_units(self, value: float) -> float:
        """A value of the images in 0 to 1."""
        return value / 255 if self.are_bytes else value

    def _move(self, step: Step, mask_fill: float = 0.0, *, clips: bool = True) -> None:
        """Add a step to the geometry, and note it in ``moves`` alone: targets are rounded and clipped after each."""
        self._geometry = self._geometry or Geometry.identity(size_of(self.images), self._count)
        before = self._geometry.size
        step(self._geometry)
        size = self._geometry.size
        each = size if isinstance(size, tuple) else size[:: self.frames]
        movement = Movement(self._all_sizes, each, step=step, frames=self.frames, fill=mask_fill, clips=clips)
        self.moves.append(movement)
        if size is not before:
            self._resize(size)


@dataclass
class Normalization:
    """``value * scale + bias`` for each channel, and how the result is stored."""

    scale: tuple[float, ...]
    bias: tuple[float, ...]
    dtype: torch.dtype
    memory_format: torch.memory_format


def one_size(sizes: torch.Tensor) -> Size:
    """Heights and widths, int64 (N, 2), as one size if they are alike."""
    each = sizes.numpy()
    same = len(each) > 0 and bool((each == each[0]).all())
    return (int(each[0, 0]), int(each[0, 1])) if same else sizes


@lru_cache(maxsize=64)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], divisor: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Scale and bias of each channel: ``value * scale + bias`` is ``(value / divisor - mean) / std``."""
    return tuple(1 / (divisor * s) for s in std), tuple(-m / s for m, s in zip(mean, std, strict=True))


def _channels(values: tuple[float, ...], like: int | tuple[float, ...]) -> tuple[float, ...]:
    count = like if isinstance(like, int) else len(like)
    return values * count if len(values) == 1 else values
