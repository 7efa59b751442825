"""Which tensors of a batch are its images, and whether their values are what a mean and std expect."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fastload.structure.loaded_types import is_vision
from fastload.structure.tree import Path, Tree, name_of

__all__ = ["describe", "find_images", "is_single", "remark_on_others", "remark_on_range"]

BATCHED_DIMS = 4


def is_single(image: torch.Tensor) -> bool:
    """Whether this is one image (C, H, W) or one typed video (T, C, H, W), not a batch of them."""
    return image.ndim < BATCHED_DIMS + is_vision(image, "Video")


def find_images(tree: Tree) -> dict[Path, torch.Tensor]:
    """The images among the tensors of a batch, by torchvision v2's rule.

    >>> from fastload.structure.tree import tree_flatten
    >>> list(find_images(tree_flatten((torch.zeros(8, 3, 4, 4), torch.zeros(8)))))
    [(0,)]

    They are the ``tv_tensors`` images and videos; if there are none, the first plain tensor; and if that is a single
    image of shape (C, H, W) in a list within the batch, as detection loaders yield them, the images of that list.
    """
    found = tree.tensors
    typed = {path: tensor for path, tensor in found.items() if is_vision(tensor, "Image", "Video")}
    if typed:
        return typed
    plain = {path: tensor for path, tensor in found.items() if not is_vision(tensor, "TVTensor")}
    if not plain:
        raise TypeError(
            f"the batch holds no image: its tensors are {describe(found)}; give a plain tensor or a tv_tensors.Image"
        )
    path, image = next(iter(plain.items()))
    if image.ndim < BATCHED_DIMS - 1 or image.layout is not torch.strided or image.is_nested:
        raise TypeError(
            f"the first tensor of the batch is taken for the images, but it is {describe({path: image})}; "
            "images are dense, (N, C, H, W) or (C, H, W): put them first, or mark them as tv_tensors.Image"
        )
    return _images_beside(plain, path, tree) if image.ndim < BATCHED_DIMS else {path: image}


def _images_beside(plain: Mapping[Path, torch.Tensor], first: Path, tree: Tree) -> dict[Path, torch.Tensor]:
    """What is an image if the tensor at ``first`` is a single one."""
    _refuse_samples(plain, first, tree)
    if len(first) == 1 or not isinstance(first[-1], int):
        return {first: plain[first]}
    beside = [path for path in plain if path[:-1] == first[:-1] and plain[path].ndim == plain[first].ndim]
    return {path: plain[path] for path in beside}


def _refuse_samples(plain: Mapping[Path, torch.Tensor], first: Path, tree: Tree) -> None:
    """Refuse a list of samples, of which only the first one's image would be found."""
    if tree.root is None or not isinstance(tree.root.container, list):
        return
    others = [
        path
        for path, tensor in plain.items()
        if path[1:] == first[1:] and path != first and tensor.shape[:1] == plain[first].shape[:1]
    ]
    if any(plain[path].ndim == plain[first].ndim for path in others):
        raise TypeError(
            f"the batch looks like a list of samples, the first of them {describe({first: plain[first]})}: collate it "
            "to (images, targets), or mark the images as tv_tensors.Image"
        )


def remark_on_range(image: torch.Tensor, full_scale: float) -> str | None:
    """What is odd about normalising ``image`` (on the host) with a mean and std for values from 0 to ``full_scale``.

    Values below 0, values above 1 where the full scale is 1, and none above 1 where it is 255 mean in practice that
    floating-point images have been scaled or normalised once already. uint8 images are always right.
    """
    if not image.is_floating_point() or image.numel() == 0:
        return None
    low, high = (float(value) for value in torch.aminmax(image))
    if low >= 0 and (high <= 1 if full_scale == 1 else high > 1):
        return None
    return (
        f"the images are {image.dtype} with values from {low:.4g} to {high:.4g}, and mean and std are given for values "
        f"from 0 to {full_scale:.0f}: are they normalised already? They are being normalised again. Yield uint8 "
        "images, or leave out mean and std."
    )


def remark_on_others(tree: Tree, images: Mapping[Path, torch.Tensor]) -> str | None:
    """Name a plain tensor that looks like the images and is none by the rule: the second view of a pair, for example.

    >>> from fastload.structure.tree import tree_flatten
    >>> tree = tree_flatten((torch.zeros(8, 3, 4, 4), torch.zeros(8, 3, 4, 4)))
    >>> remark_on_others(tree, find_images(tree)).split(",")[0]
    'batch[1] looks like the images at batch[0]'
    """
    path, image = next(iter(images.items()))
    alike = (
        name_of(other)
        for other, tensor in tree.tensors.items()
        if other not in images and (type(tensor), tensor.shape, tensor.dtype) == (type(image), image.shape, image.dtype)
    )
    other = None if is_vision(image, "TVTensor") else next(alike, None)
    return other and (
        f"{other} looks like the images at {name_of(path)}, and is not transformed, since only the first plain tensor "
        "of a batch is: if it is to be transformed too, let the data set mark both as tv_tensors.Image, or this one as "
        "tv_tensors.Mask"
    )


def describe(found: Mapping[Path, torch.Tensor]) -> str:
    """Tensors with their paths, types, dtypes and shapes, for an error."""
    described = (
        f"{name_of(path)}: {type(tensor).__name__} {tensor.dtype} {tuple(tensor.shape)}"
        for path, tensor in found.items()
    )
    return ", ".join(described) or "none"
