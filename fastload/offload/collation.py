"""``OffloadCollate``: a loader's own ``collate_fn``, with the images that are handed over packed in its batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from fastload.data.collate import lists_by_default, tell_files
from fastload.data.encoded import Beside, EncodedImages
from fastload.data.packing import Decoded, pack
from fastload.data.vision_collate import collate_vision
from fastload.offload.error import CannotOffloadError
from fastload.offload.handover import MASKS, HandedImage, HandedImages, refuse_others
from fastload.structure.tree import Path, Tree, name_of, tree_flatten, tree_unflatten
from fastload.structure.unstacked import Unstacked

__all__ = ["OffloadCollate", "handed", "is_like_jpeg"]


class OffloadCollate:
    """Collates samples by the loader's own function, which does not see the images' values, and packs the images.

    Args:
        collate: the loader's ``collate_fn``.
        files: whether images are packed as files, for ``T.DecodeJpeg``.
        decode: decode JPEGs here, as :func:`fastload.collate` does.
    """

    def __init__(self, collate: Callable[[Any], Any], *, files: bool, decode: bool = False) -> None:
        self.collate = collate_vision if collate is default_collate else collate
        self.files = files
        self.decode = decode

    def __call__(self, samples: Sequence[Any]) -> Any:
        """The batch."""
        tree = tree_flatten(self.collate(samples))
        packed = self._packed_images(tree)
        if self.collate is collate_vision:
            lists = dict(lists_by_default(samples[0], tree_unflatten(tree)))
            for path, files in packed.items():
                if isinstance(files, EncodedImages):
                    tell_files(files, Beside(path, lists), samples)
        return tree_unflatten(tree.replaced(packed))

    def packed(self, tree: Tree) -> Any:
        """A collated batch, with its images packed."""
        return tree_unflatten(tree.replaced(self._packed_images(tree)))

    def _packed_images(self, tree: Tree) -> dict[Path, Any]:
        return {path: self._packed(images) for path, images in handed(tree)}

    def _packed(self, images: HandedImages | list[HandedImage] | tuple[HandedImage, ...]) -> Any:
        each = images.images if isinstance(images, HandedImages) else images
        container = None if isinstance(images, HandedImages) else list if isinstance(images, list) else tuple
        if not self.files:
            values: list[torch.Tensor] = [image.value for image in each]  # type: ignore[misc]
            return _stacked(values) if container is None else container(values)
        files = [image.value if isinstance(image.value, bytes) else _decoded(image.value) for image in each]
        names = [image.name or f"sample {number}" for number, image in enumerate(each)]
        packed = pack(files, decode=self.decode, upright=False, names=names)  # as Pillow would have decoded them
        packed.container = container
        return packed


def handed(tree: Tree) -> list[tuple[Path, Any]]:
    """The places of a flattened batch where images of samples stand, stacked or in a list or tuple.

    Raises:
        CannotOffloadError: an image stands alone: samples are not collated.
    """
    found: list[tuple[Path, Any]] = []
    for path, value in tree.walk():
        if isinstance(value, HandedImages) or _are_listed(value):
            found.append((path, value))
        elif _are_mixed(value):
            refuse_others(value)
        elif isinstance(value, HandedImage) and (not found or found[-1][0] != path[:-1]):
            raise CannotOffloadError(f"collate_fn leaves images in their samples: {name_of(path)} is one image")
    return found


def _are_listed(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(each, HandedImage) for each in value)


def _are_mixed(value: Any) -> bool:
    """Whether it is a list of images of which some are not handed over, and not a sample with its image."""
    if not isinstance(value, list | tuple):
        return False
    others = [each for each in value if not isinstance(each, HandedImage)]
    return 0 < len(others) < len(value) and all(getattr(each, "ndim", 0) == len("CHW") for each in others)


def _stacked(images: list[torch.Tensor]) -> torch.Tensor | Unstacked:
    kinds = sorted({(len(image), str(image.dtype)) for image in images})
    if len(kinds) > 1:
        got = " and ".join(f"{dtype} ({channels}, H, W)" for channels, dtype in kinds)
        raise CannotOffloadError(
            f"collate_fn stacks images that differ in more than their sizes: {got}. Convert them to one kind in the "
            f'data set, such as Image.open(path).convert("RGB"). {MASKS}'
        )
    if all(image.shape == images[0].shape for image in images):
        batch: torch.Tensor = default_collate(images)
        return batch
    return Unstacked(images)


def is_like_jpeg(image: torch.Tensor) -> bool:
    """Whether an image is what a decoded JPEG is: uint8 (3, H, W)."""
    return image.dtype is torch.uint8 and image.ndim == len("CHW") and len(image) == len("RGB")


def _decoded(image: torch.Tensor) -> Decoded:
    if not is_like_jpeg(image):
        raise CannotOffloadError(
            f"an image among files must be uint8 (3, H, W); got {image.dtype} {tuple(image.shape)}: let the data set "
            f"convert all photographs to RGB. {MASKS}"
        )
    return Decoded(image.permute(1, 2, 0).numpy())
