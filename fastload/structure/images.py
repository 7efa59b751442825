"""Which tensors of a batch are its images, and whether their values are what a mean and std expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fastload.structure.field import Rule, find_fields
from fastload.structure.loaded_types import is_vision
from fastload.structure.tree import Path, Tree, is_in_list, name_of, tree_unflatten
from fastload.structure.unstacked import Unstacked

__all__ = ["describe", "find_images", "is_single", "remark_on_grey", "remark_on_others", "remark_on_range"]

BATCHED_DIMS = 4
MOST_CHANNELS = 4  # of an image that raises no question


def is_single(image: torch.Tensor) -> bool:
    """Whether this is one image (C, H, W) or one typed video (T, C, H, W), not a batch of them."""
    return image.ndim < BATCHED_DIMS + is_vision(image, "Video")


def find_images(tree: Tree, rule: Rule = None, files: Mapping[Path, Any] | None = None) -> dict[Path, Any]:
    """The images among the leaves of a batch: by the user's rule, else its files, else by torchvision v2's rule.

    >>> from fastload.structure.tree import tree_flatten
    >>> tree = tree_flatten({"input_ids": torch.zeros(8, 5), "pixel_values": torch.zeros(8, 3, 4, 4)})
    >>> list(find_images(tree, "pixel_values"))
    [('pixel_values',)]

    By torchvision's rule they are the ``tv_tensors`` images and videos; if there are none, the first plain tensor; and
    if that is a single image of shape (C, H, W) in a list within the batch, as detection loaders yield them, the images
    of that list.

    Args:
        tree: a flattened batch.
        rule: which field holds the images, or a list of them; None to find them.
        files: the leaves that are image files.

    Raises:
        TypeError: there is no image, or what the rule names is none, or it leaves out a file.
    """
    if rule is not None:
        return _stated(tree, rule, files or {})
    if files:
        return dict(files)
    found = tree.tensors
    typed = {path: tensor for path, tensor in found.items() if is_vision(tensor, "Image", "Video")}
    if typed:
        return typed
    plain = {path: tensor for path, tensor in found.items() if not is_vision(tensor, "TVTensor")}
    if not plain:
        raise TypeError(
            f"the batch holds no image: its tensors are {describe(found)}; give a plain tensor or a tv_tensors.Image, "
            "or say which field holds the images: PrefetchLoader(images=...)"
        )
    path, image = next(iter(plain.items()))
    if not _may_be_image(image):
        raise TypeError(
            f"the first tensor of the batch is taken for the images, but it is {describe({path: image})}; "
            "images are dense, (N, C, H, W) or (C, H, W): say which field holds them by PrefetchLoader(images=...), "
            f"put them first, or mark them as tv_tensors.Image; the tensors of the batch are {describe(found)}"
        )
    return _images_beside(plain, path, tree) if image.ndim < BATCHED_DIMS else {path: image}


def _stated(tree: Tree, rule: Rule, files: Mapping[Path, Any]) -> dict[Path, Any]:
    """The images that the user's rule names."""
    try:
        fields = find_fields(tree_unflatten(tree), rule)
    except LookupError as error:
        raise _misled(tree, rule, files, str(error.args[0])) from error
    images = {path: leaf for path, leaf in tree.leaves.items() if any(path[: len(each)] == each for each in fields)}
    wrong = next((path for path, leaf in images.items() if not (path in files or _may_be_image(leaf))), None)
    if not images or wrong is not None:
        raise _misled(tree, rule, files, "it holds nothing" if wrong is None else f"{name_of(wrong)} is no image")
    if left := [name_of(path) for path in files if path not in images]:
        raise _misled(tree, rule, files, f"{left[0]} has image files too: pass images= to fl.collate as well")
    return images


def _misled(tree: Tree, rule: Rule, files: Mapping[Path, Any], why: str) -> TypeError:
    held = [f"{name_of(path)}: {leaf!r}" for path, leaf in files.items()] + [describe(tree.tensors)]
    return TypeError(
        f"images={rule!r} must name the images of the batch, dense (N, C, H, W) or a list of (C, H, W), or files "
        f"packed by fl.collate; {why}; the batch holds {', '.join(held)}"
    )


def _may_be_image(leaf: Any) -> bool:
    """Whether it has the form of an image or of a batch of images."""
    if not isinstance(leaf, torch.Tensor) or (is_vision(leaf, "TVTensor") and not is_vision(leaf, "Image", "Video")):
        return False
    return leaf.ndim >= BATCHED_DIMS - 1 and leaf.layout is torch.strided and not leaf.is_nested


def _images_beside(plain: Mapping[Path, torch.Tensor], first: Path, tree: Tree) -> dict[Path, torch.Tensor]:
    """What is an image if the tensor at ``first`` is a single one."""
    if tree.root is not None and isinstance(tree.root.container, Unstacked):
        return dict(plain)
    _refuse_samples(plain, first, tree)
    if len(first) <= 1 or not isinstance(first[-1], int):
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
        if other not in images
        and not tensor.is_nested
        and (type(tensor), tensor.shape, tensor.dtype) == (type(image), image.shape, image.dtype)
    )
    other = None if is_vision(image, "TVTensor") else next(alike, None)
    return other and (
        f"{other} looks like the images at {name_of(path)}, and is not transformed, since only the first plain tensor "
        "of a batch is: if it is to be transformed too, name both by PrefetchLoader(images=[...]), or let the data set "
        "mark both as tv_tensors.Image, or this one as tv_tensors.Mask"
    )


def remark_on_grey(tree: Tree, images: Mapping[Path, torch.Tensor]) -> str | None:
    """Ask whether one image (C, H, W) of many channels is grey images (N, H, W), where another field has N entries.

    >>> from fastload.structure.tree import tree_flatten
    >>> tree = tree_flatten((torch.zeros(8, 28, 28), torch.zeros(8)))
    >>> remark_on_grey(tree, find_images(tree)).split(",")[0]
    'batch[0] is taken for one image of 8 channels'
    """
    path, image = next(iter(images.items()))
    # Detection's lists hold single images.
    if is_in_list(path) or is_vision(image, "TVTensor") or image.ndim >= BATCHED_DIMS or len(image) <= MOST_CHANNELS:
        return None
    count = len(image)
    others = (place for place, value in tree.walk() if place != path[: len(place)] and _entries(value) == count)
    beside = next(map(name_of, others), None)
    return beside and (
        f"{name_of(path)} is taken for one image of {count} channels, {tuple(image.shape)}, and {beside} has "
        f"{count} entries, too: if it is {count} grey images, give them an axis in the data set: images.unsqueeze(1), "
        "which is images[:, None]"
    )


def _entries(value: Any) -> int | None:
    """How many entries a tensor or a list has; None for what is neither."""
    if isinstance(value, torch.Tensor):
        return value.shape[0] if value.ndim and not value.is_nested else None
    return len(value) if isinstance(value, list | tuple) else None


def describe(found: Mapping[Path, torch.Tensor]) -> str:
    """Tensors with their paths, types, dtypes and shapes, for an error."""
    return ", ".join(f"{name_of(path)}: {_described(tensor)}" for path, tensor in found.items()) or "none"


def _described(tensor: torch.Tensor) -> str:
    shape = "nested" if tensor.is_nested else tuple(tensor.shape)
    return f"{type(tensor).__name__} {tensor.dtype} {shape}"
