"""Which tensors of a batch are its images, and whether their values are what a mean and std expect."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torchvision import tv_tensors

from fastload.nested import Path

__all__ = ["BATCHED_DIMS", "find_images", "refuse_targets", "remark_on_range"]

BATCHED_DIMS = 4
_IMAGE_TYPES = (tv_tensors.Image, tv_tensors.Video)
_TARGET_TYPES = (tv_tensors.BoundingBoxes, tv_tensors.Mask, tv_tensors.KeyPoints)


def find_images(tensors: Mapping[Path, torch.Tensor]) -> dict[Path, torch.Tensor]:
    """The images among the tensors of a batch, by torchvision v2's rule.

    >>> list(find_images({(0,): torch.zeros(8, 3, 4, 4), (1,): torch.zeros(8)}))
    [(0,)]

    They are the ``tv_tensors`` images and videos; if there are none, the first plain tensor; and if that is a single
    image of shape (C, H, W) in a list within the batch, as detection loaders yield them, the images of that list.
    """
    typed = {path: tensor for path, tensor in tensors.items() if isinstance(tensor, _IMAGE_TYPES)}
    if typed:
        return typed
    plain = {path: tensor for path, tensor in tensors.items() if not isinstance(tensor, tv_tensors.TVTensor)}
    if not plain:
        raise TypeError(
            f"the batch holds no image: its tensors are {_describe(tensors)}; give a plain tensor or a tv_tensors.Image"
        )
    path, image = next(iter(plain.items()))
    if image.ndim < BATCHED_DIMS - 1:
        raise TypeError(
            f"the first tensor of the batch is taken for the images, but it is {_describe({path: image})}; "
            "images are (N, C, H, W) or (C, H, W): put them first, or mark them as tv_tensors.Image"
        )
    in_a_list = len(path) > 1 and isinstance(path[-1], int)
    return _images_of_list(plain, path) if image.ndim < BATCHED_DIMS and in_a_list else {path: image}


def _images_of_list(plain: Mapping[Path, torch.Tensor], first: Path) -> dict[Path, torch.Tensor]:
    def kind(tensor: torch.Tensor) -> tuple[object, ...]:
        return tensor.ndim, tensor.dtype, tensor.shape[0] if tensor.ndim else None

    alike = {path: tensor for path, tensor in plain.items() if kind(tensor) == kind(plain[first])}
    neighbours = [path for path in plain if path[:-1] == first[:-1]]
    if len(neighbours) > 1 and all(path in alike for path in neighbours):
        return {path: plain[path] for path in neighbours}
    namesakes = [
        path for path in alike if path[:-2] == first[:-2] and path[-1] == first[-1] and len(path) == len(first)
    ]
    if len(namesakes) > 1 and all(isinstance(path[-2], int) for path in namesakes):
        raise TypeError(
            f"the batch looks like a list of samples, {_describe({path: plain[path] for path in namesakes[:2]})}, …: "
            "collate it to a list of images and a list of targets, or mark the images as tv_tensors.Image"
        )
    return {first: plain[first]}


def refuse_targets(tensors: Mapping[Path, torch.Tensor]) -> None:
    """Refuse boxes, masks and keypoints where the pixels that they describe are about to move."""
    targets = {path: tensor for path, tensor in tensors.items() if isinstance(tensor, _TARGET_TYPES)}
    if targets:
        raise TypeError(
            f"the transform moves pixels, and boxes, masks and keypoints cannot follow yet: {_describe(targets)}; "
            "move pixels in the workers, with torchvision.transforms.v2"
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


def _describe(tensors: Mapping[Path, torch.Tensor]) -> str:
    described = (
        f"batch{''.join(f'[{key!r}]' for key in path)}: {type(tensor).__name__} {tensor.dtype} {tuple(tensor.shape)}"
        for path, tensor in tensors.items()
    )
    return ", ".join(described) or "none"
