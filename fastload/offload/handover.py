"""``Handover``: what stands in the place of a data set's transform, and hands images over to the device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import register_pytree_node
from torch.utils.data._utils.collate import default_collate_fn_map

from fastload.offload.bad_image import BadImage
from fastload.offload.error import CannotOffloadError
from fastload.offload.opaque import Opaque
from fastload.offload.seed_watch import SeedWatch
from fastload.offload.takes import MODES, WHATEVER, Takes
from fastload.offload.undecoded import contents_of
from fastload.structure.loaded_types import is_vision, loaded_types
from fastload.structure.tree import tree_flatten

__all__ = ["MASKS", "HandedImage", "HandedImages", "Handover", "refuse_others"]

Worker = Callable[..., Any]
PIXEL_DIMS = 3
MASKS = (
    "A mask is no photograph: give it to a transform of torchvision's v2 in one call with its image, as a "
    "tv_tensors.Mask, or return both files and use fl.collate(masks=...)"
)


class HandedImage(Opaque):
    """An image on its way to the device: the bytes of its file, or its pixels.

    It is no tensor, so that code which would compute with it, and would get other values than the original transform
    gave, fails. It may stand in tuples, lists and mappings, and ``torch.stack`` and ``default_collate`` take it.

    Attributes:
        value: the bytes of a file, or a tensor (C, H, W).
        name: the file's path, if it is known.
        problem: why the data set could not open or decode the file.
    """

    __slots__ = ("name", "problem", "value")

    def __init__(self, value: bytes | torch.Tensor, name: str = "", problem: str = "") -> None:
        self.value = value
        self.name = name
        self.problem = problem

    def __repr__(self) -> str:
        return f"HandedImage({self.name or 'unnamed'})"

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> HandedImages:
        images: Any = arguments[0] if arguments else (options or {}).get("tensors")
        others = {key: value for key, value in (options or {}).items() if key != "tensors"}
        if function is torch.stack:
            refuse_others(images)
            if arguments[1:] in ((), (0,)) and others in ({}, {"dim": 0}):
                return HandedImages(images)
        raise CannotOffloadError(f"{_name_of(function)} is applied to images after their transform")


class HandedImages(Opaque):
    """Images that are to be one batch. It is opaque too: see :class:`HandedImage`."""

    __slots__ = ("images",)

    def __init__(self, images: Sequence[HandedImage]) -> None:
        self.images = list(images)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        raise CannotOffloadError(f"{_name_of(function)} is applied to the batch of images")


def _stacked(images: Sequence[HandedImage], **_: Any) -> HandedImages:
    refuse_others(images)
    return HandedImages(images)


def refuse_others(images: Sequence[Any]) -> None:
    """Refuse images of which some are not handed over."""
    other = next((image for image in images if not isinstance(image, HandedImage)), None)
    if other is not None:
        raise CannotOffloadError(
            f"the data set returns a {type(other).__name__} of its own for some samples, and an image for others. If "
            'it does so for bad files, let it raise, and say fl.offload(loader, on_error="skip") or "zero"'
        )


def _walked(*_: Any) -> Any:
    """Where PyTorch's pytree meets an image: torchvision's v2 transforms would leave it alone and change the rest."""
    raise CannotOffloadError(
        "a transform of torchvision's v2, or another function that walks over the batch, is applied to images after "
        "their transform. For MixUp and CutMix, call fl.offload(loader, transform=T.MixUp(...))"
    )


default_collate_fn_map[HandedImage] = _stacked
for kind in (HandedImage, HandedImages):
    register_pytree_node(kind, _walked, _walked)


class Handover:
    """Stands where the transform of a data set stood, does what stays in the worker, and hands over the image.

    It is called as the original was: with an image, with an image and targets, or by keyword with ``image=``.

    Args:
        worker: what stays in the worker; None if nothing does.
        arrays: the dtypes of NumPy arrays whose pixels mean the same to the device's part as to the original;
            None for all.
        watch: looks at random generators at each call.
        takes: the images for which the device's part does the same.

    Attributes:
        was_given_targets: whether it was ever called with more than an image.
        was_given_images: whether another image was among them, as far as ``watch`` has looked.
    """

    def __init__(
        self,
        worker: Worker | None,
        arrays: Collection[str] | None = None,
        watch: SeedWatch | None = None,
        takes: Takes = WHATEVER,
    ) -> None:
        self.worker = worker
        self.arrays = arrays
        self.watch = watch
        self.takes = takes
        self.was_given_targets = self.was_given_images = False

    def __repr__(self) -> str:
        return f"Handover({self.worker!r})"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the worker's part returns, or was given, with the image in it handed over."""
        if self.watch is not None:
            self.watch.look()
            beside = tree_flatten(arguments[1:]).leaves.values()
            self.was_given_images |= any(is_vision(each, "Image", "Video") for each in beside)
        several = len(arguments) > 1
        self.was_given_targets = self.was_given_targets or several or len(named) > 1
        if self.worker is not None:
            result = self.worker(*arguments, **named)
        else:
            result = named or (arguments if several else arguments[0])
        if named and "image" not in result:
            raise CannotOffloadError(f"the transform is called by keyword, without image: with {', '.join(named)}")
        if named:
            return result | {"image": self._handed(result["image"])}
        if several:
            return (self._handed(result[0]), *result[1:])
        return self._handed(result)

    def _handed(self, image: Any) -> HandedImage:
        if self.arrays is not None and isinstance(image, np.ndarray) and image.dtype.name not in self.arrays:
            taken = f"takes {' and '.join(self.arrays)}" if self.arrays else "leaves arrays as they are"
            better = "one of uint8" if "uint8" in self.arrays else "a Pillow image or a uint8 tensor (C, H, W)"
            raise CannotOffloadError(
                f"a step of the transform that is to move is given a NumPy array of {image.dtype}, and {taken}: make "
                f"it {better} in the data set"
            )
        return _handed(image, self.takes)


def _handed(image: Any, takes: Takes) -> HandedImage:
    contents = contents_of(image)
    if contents is None:
        pixels = _pixels(image, takes)
        _refuse_dtype(pixels.dtype, takes)
        return HandedImage(pixels)
    return HandedImage(contents, image.source, str(image.error) if isinstance(image, BadImage) else "")


def _refuse_dtype(dtype: torch.dtype, takes: Takes) -> None:
    """Refuse images of a dtype for which the device's part would give other values, or values of another dtype."""
    if takes.dtypes is not None and dtype not in takes.dtypes:
        taken = " or ".join(map(str, takes.dtypes))
        raise CannotOffloadError(
            f"a step of the transform that is to move is given an image of {dtype}, and would change it in another way "
            f"than the original does: make it {taken} in the data set"
        )
    if takes.keeps not in (None, dtype):
        raise CannotOffloadError(
            f"the transform normalises an image of {dtype} without a conversion before or after it, and what is to "
            f"move makes it {takes.keeps}: make it {takes.keeps} in the data set, or say what the result is to be: "
            "fl.offload(loader, dtype=...), one of torch.float32, torch.bfloat16 and torch.float16"
        )


def _pixels(image: Any, takes: Takes) -> torch.Tensor:
    """An image as a tensor (C, H, W), with the values that it has."""
    if isinstance(image, torch.Tensor):
        return _plain(image, takes)
    is_pillow = isinstance(image, loaded_types("PIL.Image", "Image"))
    if is_pillow:
        if image.mode not in takes.modes:
            does, hint = ("recolours", "") if image.mode in MODES else ("resizes", f". {MASKS}")
            taken = ", ".join(map(repr, takes.modes))
            raise CannotOffloadError(
                f"the transform is given a Pillow image of mode {image.mode!r}, which Pillow {does} in its own way; "
                f"the modes that what is to move takes are {taken}: convert it in the data set, "
                f'such as by image.convert("RGB"){hint}'
            )
        image = np.array(image)
    if not isinstance(image, np.ndarray):
        raise CannotOffloadError(f"the transform is given {type(image).__name__}, which is no image, array or tensor")
    planes = image[:, :, None] if image.ndim < PIXEL_DIMS else image
    return torch.from_numpy(np.ascontiguousarray(planes)).permute(2, 0, 1).contiguous()


def _plain(image: torch.Tensor, takes: Takes) -> torch.Tensor:
    """The values of a tensor that is an image."""
    if is_vision(image, "TVTensor") and not is_vision(image, "Image", "Video"):
        hint = f". {MASKS}" if is_vision(image, "Mask") else ": give it to the transform in one call with its image"
        raise CannotOffloadError(f"the transform is given a {type(image).__name__} alone{hint}")
    if not takes.tensors and image.dtype is not torch.float32:
        raise CannotOffloadError(
            f"the transform's conversion, as ToTensor, is given a tensor of {image.dtype}, which it leaves as it is: "
            "leave it out, or put v2.ToDtype(torch.float32, scale=True) in its place"
        )
    return image.as_subclass(torch.Tensor)


def _name_of(function: Any) -> str:
    return f"torch.{getattr(function, '__name__', function)}"
