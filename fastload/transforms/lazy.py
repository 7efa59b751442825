"""``LazyImages``: images and the work recorded on them, done in as few passes over memory as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fastload import kernels
from fastload.kernels.spec import ColourProgram, Epilogue, Erase, Mix, Op
from fastload.structure.ragged import Ragged
from fastload.transforms.geometry import (
    FLIP_X,
    FLIP_Y,
    OFFSET_X,
    OFFSET_Y,
    VIRTUAL_WIDTH,
    WIDTH,
    Geometry,
    Movement,
    Pixels,
    Size,
    rows_of,
    sizes_of,
    unflipped,
    whole,
    windows_of,
)

__all__ = ["HALVES", "LazyImages"]

HALVES = (torch.float16, torch.bfloat16)


@dataclass
class Normalization:
    """``value * scale + bias`` for each channel, and how the result is stored."""

    scale: tuple[float, ...]
    bias: tuple[float, ...]
    dtype: torch.dtype
    memory_format: torch.memory_format


class LazyImages:
    """A batch of images, and work that was recorded on it and is not done yet (as Polars' LazyFrame).

    Transforms record; :meth:`flush` does. One pass over memory does geometry, colours, normalisation, erasing and
    mixing, in this order, so records collect as long as they come in this order. One out of order makes :meth:`flush`
    do what was collected, and begins the next pass. Colours that need a statistic of the image (contrast), and mixing
    after geometry, need one more pass each.

    Args:
        images: (N, C, H, W), or images of different sizes.
        store: the dtype of values between passes, which are from 0 to 1.
        frames: how many consecutive images are one sample, a video, and share its random parameters.
    """

    def __init__(self, images: Pixels, *, store: torch.dtype = torch.float32, frames: int = 1) -> None:
        self.images = images
        self.store = store
        self.frames = frames
        self.dtype = images.dtype
        self.moves: list[Movement] = []
        self.mixes: list[Callable[[torch.Tensor], torch.Tensor]] = []
        self._sizes = sizes_of(images)
        self._clear()

    def _clear(self) -> None:
        self._geometry: Geometry | None = None
        self._ops: list[torch.Tensor] = []
        self._normalization: Normalization | None = None
        self._erase: Erase | None = None
        self._mix: Mix | None = None

    @property
    def sizes(self) -> torch.Tensor:
        """Heights and widths of the samples once all recorded work is done, int64 (N, 2)."""
        return self._sizes[:: self.frames]

    # What transforms record

    def crop_resize(self, boxes: torch.Tensor, size: Size, interpolation: str = "bilinear") -> None:
        """Cut ``boxes``, int32 (N, 4): top, left, height, width, and resize them to ``size``, one for all or (N, 2)."""
        size = size if isinstance(size, tuple) else self._each(size)
        geometry = self._movable(free=lambda now: not (now.resized or now.moved))
        windows = windows_of(self._each(boxes).numpy(), size)
        self._moved(windows, size)
        geometry.windows[:, : VIRTUAL_WIDTH + 1] = windows[:, : VIRTUAL_WIDTH + 1]
        geometry.windows[:, : WIDTH + 1] = unflipped(windows[:, : WIDTH + 1], self._sizes, geometry.mirrors)
        geometry.interpolation = interpolation
        geometry.resized = True
        self._sized(geometry, size)

    def crop(self, boxes: torch.Tensor, fill: float = 0.0) -> None:
        """Cut ``boxes``, int32 (N, 4), all of one size or not; what lies outside of the image is ``fill``."""
        cut = self._each(boxes).numpy()
        fill = fill / 255 if self.dtype is torch.uint8 else fill
        inside = bool((cut[:, :2] >= 0).all() and (cut[:, :2] + cut[:, 2:] <= self._sizes.numpy()).all())
        geometry = self._movable(free=lambda now: inside or not now.moved)
        sides = cut[:, 2:].astype(np.int64)
        same = bool((sides == sides[:1]).all())
        size = (int(sides[0, 0]), int(sides[0, 1])) if same else torch.from_numpy(sides)
        windows = windows_of(whole(self._sizes), self._sizes)
        windows[:, OFFSET_Y : OFFSET_X + 1] = cut[:, :2]
        self._moved(windows, size)
        flipped = unflipped(cut, self._sizes, geometry.mirrors)
        geometry.windows[:, OFFSET_Y : OFFSET_X + 1] += flipped[:, :2]
        geometry.fill = geometry.fill if geometry.moved else fill
        geometry.moved = True
        self._sized(geometry, size)

    def flip(self, horizontal: torch.Tensor | None = None, vertical: torch.Tensor | None = None) -> None:
        """Mirror some images, bool (N,), left to right, top to bottom, or both."""
        if self._erase is not None or self._mix is not None:
            self.flush()
        self._geometry = self._geometry or Geometry.identity(self.images)  # a mirror image has the same colours
        windows = windows_of(whole(self._sizes), self._sizes)
        for column, chosen in ((FLIP_X, horizontal), (FLIP_Y, vertical)):
            if chosen is not None:
                windows[:, column] = self._each(chosen).numpy()
        self._moved(windows, self._geometry.size)
        self._geometry.windows[:, FLIP_Y:] ^= windows[:, FLIP_Y:]

    def colour(self, ops: torch.Tensor) -> None:
        """Apply colour operations, float32 (N, S, 2): rows of a code (``Op``) and an amount, in order."""
        if self._normalization is not None or self._erase is not None or self._mix is not None:
            self.flush()
        self._ops.append(self._each(ops))

    def normalize(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
        full_scale: float = 1.0,
    ) -> None:
        """``(value - mean) / std`` for each channel; floating-point images lie in 0 to ``full_scale``."""
        if not (self.dtype is torch.uint8 or self.dtype.is_floating_point):
            raise TypeError(f"images must be uint8 (0 to 255) or floating-point (0 to 1); got {self.dtype}")
        if len(mean) != self._channel_count:
            shape = (
                tuple(self.images.shape) if isinstance(self.images, torch.Tensor) else (self.images.channels, "H", "W")
            )
            raise TypeError(
                f"mean and std have {len(mean)} channels, and images of shape {shape} have not: they must be "
                f"(N, {len(mean)}, H, W) or (N, H, W, {len(mean)})"
            )
        if self._normalization is not None or self._mix is not None:
            self.flush()
        divisor = 1.0 if self.dtype is torch.uint8 else full_scale
        scale = tuple(1 / (divisor * s) for s in std)
        bias = tuple(-m / s for m, s in zip(mean, std, strict=True))
        if self._erase is not None:  # erased before: what was put there is normalised too
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
        """Overwrite ``boxes``, int32 (N, 4), with ``bias + scale * noise``, in units of the values as they are now."""
        if self._erase is not None or self._mix is not None:
            self.flush()
        if self.dtype is torch.uint8 and self._normalization is None:
            scale, bias = (tuple(value / 255 for value in values) for values in (scale, bias))
        count = self._channel_count
        if not {len(scale), len(bias)} <= {1, count}:
            raise ValueError(f"value must be one number, or one for each of {count} channels; got {len(bias)}")
        self._erase = Erase(self._each(boxes), self._each(seeds), _channels(scale, count), _channels(bias, count))

    def mix(self, mix: Mix, labels: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Mix each image with its partner; ``labels`` does the same to their labels."""
        if self.frames > 1:
            raise TypeError("videos cannot be mixed: MixUp and CutMix take images (N, C, H, W)")
        if self._mix is not None:
            self.flush()
        self._mix = mix
        self.mixes.append(labels)

    def warp(self, matrices: torch.Tensor, interpolation: str = "nearest", fill: float | None = 0.0) -> None:
        """Map by inverse affine matrices, float32 (N, 6), about each image's centre."""
        self.flush_batch()
        if fill is not None and self.dtype is torch.uint8:
            fill /= 255
        self._step("warp", self._each(matrices), interpolation=interpolation, fill=fill)
        self.moves.append(Movement(self.sizes, self.sizes, warp=matrices))

    def blur(self, sigmas: torch.Tensor, kernel_size: int) -> None:
        """Gaussian blur, each image by its sigma, float32 (N,); 0 for none."""
        self.flush_batch()
        self._step("blur", self._each(sigmas), kernel_size)

    def sharpen(self, factors: torch.Tensor) -> None:
        """Adjust sharpness, float32 (N,); 1 for none."""
        self.flush_batch()
        self._step("sharpen", self._each(factors))

    def equalize(self, chosen: torch.Tensor) -> None:
        """Equalise the histograms of those ``chosen``, bool (N,)."""
        self.flush_batch()
        self._step("equalize", self._each(chosen))

    # How it is done

    def flush(self, *, last: bool = False) -> Pixels:
        """Do all that has been recorded, and return the images."""
        if self._pending or (last and self.images.dtype is not self.dtype):
            self.images = self._run(last=last)
            self.dtype = self._normalization.dtype if self._normalization else self.dtype
            self._clear()
        return self.images

    def result(self) -> Pixels:
        """The images when all is done, in the dtype that the recordings ask for."""
        return self.flush(last=True)

    def flush_batch(self) -> torch.Tensor:
        """The images so far as one batch, for what takes no images of different sizes."""
        images = self.flush()
        if isinstance(images, Ragged):
            raise TypeError(
                "this transform needs images of one size, and the batch has different ones: crop or resize them first"
            )
        return images

    def _run(self, *, last: bool) -> Pixels:
        if (simple := self._run_simple(last=last)) is not None:
            return simple
        program = self._program()
        parts = 1 if program is None else program.bounds.shape[1] - 1
        passes = max(parts, 2 if self._mix is not None and self._geometry is not None else 1)
        if program is not None and passes > parts:
            bounds = program.bounds.numpy()
            program = ColourProgram(program.ops, torch.from_numpy(np.concatenate([bounds, bounds[:, -1:]], axis=1)))
        images, previous = self.images, None
        for part in range(passes):
            epilogue = self._epilogue(program, part, final=part == passes - 1, last=last, previous=previous)
            if part == 0 and self._geometry is not None:
                images, previous = self._resample(images, self._geometry, epilogue)
            else:
                images, previous = self._colour(images, epilogue)
        return images

    def _run_simple(self, *, last: bool) -> torch.Tensor | None:
        """What there is a simpler or faster way for: mirroring, normalising, or both, of a batch of any channels."""
        geometry, images = self._geometry, self.images
        moved = geometry is not None and (geometry.resized or geometry.moved or bool(geometry.mirrors[:, 0].any()))
        if moved or self._ops or self._erase or self._mix or not isinstance(images, torch.Tensor):
            return None
        mirrored = None if geometry is None else torch.from_numpy(geometry.mirrors[:, 1])
        if self._normalization is not None:
            return self._flip_normalize(images, mirrored, self._normalization)
        if mirrored is None or not (last or images.dtype is not torch.uint8):
            return None
        return self._mirror(images, mirrored)

    def _epilogue(
        self, program: ColourProgram | None, part: int, *, final: bool, last: bool, previous: torch.Tensor | None
    ) -> Epilogue:
        shared = Epilogue(program=program, part=part, previous=previous, dtype=self.store)
        if not final:
            starts = None if program is None else program.bounds.numpy()[:, part + 1 : part + 3]
            return replace(shared, statistics=starts is not None and bool((starts[:, 0] < starts[:, 1]).any()))
        done = replace(shared, erase=self._erase, mix=self._mix)
        if (normalization := self._normalization) is not None:
            return replace(
                done,
                scale=normalization.scale,
                bias=normalization.bias,
                dtype=normalization.dtype,
                memory_format=normalization.memory_format,
            )
        return replace(done, dtype=self.dtype) if last else done

    def _program(self) -> ColourProgram | None:
        if not self._ops:
            return None
        ops = np.concatenate([ops.numpy() for ops in self._ops], axis=1)
        return ColourProgram(torch.from_numpy(ops), torch.from_numpy(_bounds(ops[..., 0])))

    # The launches, which a dry run (explain.py) replaces

    def _resample(self, images: Pixels, geometry: Geometry, epilogue: Epilogue) -> tuple[Pixels, torch.Tensor | None]:
        ragged = images if isinstance(images, Ragged) else Ragged.of(images)
        return kernels.resample(
            ragged,
            torch.from_numpy(geometry.windows),
            geometry.size,
            interpolation=geometry.interpolation,
            fill=geometry.fill,
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

    @property
    def _channel_count(self) -> int:
        return self.images.channels if isinstance(self.images, Ragged) else self.images.shape[1]

    def _each(self, parameters: torch.Tensor) -> torch.Tensor:
        return parameters.repeat_interleave(self.frames, 0) if self.frames > 1 else parameters

    def _movable(self, free: Any) -> Geometry:
        """The geometry that a crop can still be added to."""
        later = self._ops or self._normalization or self._erase or self._mix
        if later or (self._geometry is not None and not free(self._geometry)):
            self.flush()
        self._geometry = self._geometry or Geometry.identity(self.images)
        return self._geometry

    def _moved(self, windows: np.ndarray, size: Size) -> None:
        """Note a step for targets to follow; each by itself, since rounding and clipping come after each."""
        size = size if isinstance(size, tuple) else size[:: self.frames]
        self.moves.append(Movement(self.sizes, size, windows=torch.from_numpy(windows[:: self.frames])))

    def _sized(self, geometry: Geometry, size: Size) -> None:
        geometry.size = size
        self._sizes = rows_of(size, len(self._sizes))


def _channels(values: tuple[float, ...], like: int | tuple[float, ...]) -> tuple[float, ...]:
    count = like if isinstance(like, int) else len(like)
    return values * count if len(values) == 1 else values


def _bounds(codes: np.ndarray) -> np.ndarray:
    """Where each image's program is cut, int32 (N, P + 1): before every operation that needs a statistic."""
    images, slots = codes.shape
    part = (codes >= Op.CONTRAST).cumsum(1)  # that each operation belongs to
    parts = int(part[:, -1].max()) + 1 if images and slots else 1
    bounds = np.full((images, parts + 1), slots, dtype=np.int32)
    for number in range(parts):
        bounds[:, number] = (part < number).sum(1)
    return bounds
