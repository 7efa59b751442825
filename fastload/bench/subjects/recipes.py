"""The recipes of ``kernels`` that begin with a crop of images of different sizes, as each subject does them.

Each function returns one of ``Crops``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torchvision.transforms import v2

from fastload import transforms as T  # noqa: N812  (as users write it)
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.crops import CLASSES, ERASED, JITTER, MIXUP_ALPHA, Crops, as_batch, deit_transform
from fastload.bench.subjects.kernel_case import OUT
from fastload.structure.ragged import Ragged

__all__ = ["DEIT_RECIPES", "RRC_RECIPES", "Recipe"]

Recipe = Callable[[Crops], torch.Tensor]
MadeRecipe = Callable[[int, torch.memory_format], Recipe]  # for a side and a memory format
Parameters = dict[str, torch.Tensor]  # of one of kornia's augmentations, in place of its own draws


def fastload(side: int, memory_format: torch.memory_format) -> Recipe:
    transform = T.Compose(
        [
            T.RandomResizedCrop(side),
            T.RandomHorizontalFlip(),
            T.Normalize(MEAN, STD, dtype=OUT, memory_format=memory_format),
        ]
    )
    return lambda crops: as_batch(transform(crops.images, crops.key))


def torchvision(_side: int, memory_format: torch.memory_format) -> Recipe:
    """Crop, resize and mirror image by image, since the sizes differ; normalise the batch at once."""
    normalize = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    return lambda crops: normalize(torch.stack(crops.cropped())).to(OUT, memory_format=memory_format)


def kornia(side: int, memory_format: torch.memory_format, *, compiled: bool = False) -> Recipe:
    """Pad the images to one size, since kornia's augmentations take batches."""
    from kornia import augmentation  # noqa: PLC0415  (a peer that may be missing)

    crop = augmentation.RandomResizedCrop((side, side), cropping_mode="resample")
    mirror = augmentation.RandomHorizontalFlip(p=0.5)
    normalize = augmentation.Normalize(torch.tensor(MEAN), torch.tensor(STD))

    def augment(images: torch.Tensor, boxes: Parameters, chosen: Parameters) -> torch.Tensor:
        out: torch.Tensor = normalize(mirror(crop(images, params=boxes), params=chosen))
        return out.to(OUT, memory_format=memory_format)

    run = torch.compile(augment, dynamic=True) if compiled else augment

    def apply(crops: Crops) -> torch.Tensor:
        images = _padded(crops.images)
        chosen = {"batch_prob": crops.flips.float(), "forward_input_shape": torch.tensor(images.shape)}
        return run(images, _kornia_boxes(crops.boxes, side, images), chosen)

    return apply


def fastload_deit(side: int, memory_format: torch.memory_format) -> Recipe:
    transform = deit_transform(side, OUT, memory_format)
    return lambda crops: as_batch(transform(crops.images, crops.key))


def torchvision_deit(_side: int, memory_format: torch.memory_format) -> Recipe:
    jitter = v2.ColorJitter(JITTER, JITTER, JITTER)
    normalize = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    erase = v2.RandomErasing(ERASED, inplace=True)
    mix = v2.MixUp(alpha=MIXUP_ALPHA, num_classes=CLASSES)

    def apply(crops: Crops) -> torch.Tensor:
        images = normalize(torch.stack([jitter(image) for image in crops.cropped()]))
        for image in images:
            erase(image)
        labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        mixed: torch.Tensor = mix(images.to(OUT, memory_format=memory_format), labels)[0]
        return mixed.contiguous(memory_format=memory_format)

    return apply


def kornia_deit(side: int, memory_format: torch.memory_format, *, compiled: bool = False) -> Recipe:
    from kornia import augmentation  # noqa: PLC0415  (a peer that may be missing)

    crop = augmentation.RandomResizedCrop((side, side), cropping_mode="resample")
    rest = augmentation.AugmentationSequential(
        augmentation.RandomHorizontalFlip(p=0.5),
        augmentation.ColorJitter(JITTER, JITTER, JITTER, p=1.0),
        augmentation.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
        augmentation.RandomErasing(p=ERASED),
        augmentation.RandomMixUpV2(p=1.0, data_keys=["input"]),
        data_keys=["input"],
    )

    def augment(images: torch.Tensor, boxes: Parameters) -> torch.Tensor:
        out: torch.Tensor = rest(crop(images, params=boxes))
        return out.to(OUT, memory_format=memory_format)

    run = torch.compile(augment, dynamic=True) if compiled else augment

    def apply(crops: Crops) -> torch.Tensor:
        images = _padded(crops.images)
        return run(images, _kornia_boxes(crops.boxes, side, images))

    return apply


def _padded(images: Ragged) -> torch.Tensor:
    height, width = images.sizes.amax(0).tolist()
    batch = torch.zeros(len(images), images.channels, height, width, device=images.device)
    for image, place in zip(images, batch, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    return batch.div_(255)


def _kornia_boxes(boxes: torch.Tensor, side: int, images: torch.Tensor) -> Parameters:
    """Return the crops in the form of kornia's own draws: the corners of each box, before and after."""
    return {
        "src": _corners(boxes).to(images.device),
        "dst": _corners(torch.tensor([[0, 0, side, side]]).expand(len(boxes), 4)).to(images.device),
        "input_size": torch.tensor(images.shape[-2:]).expand(len(boxes), 2),
        "output_size": torch.tensor([side, side]).expand(len(boxes), 2),
        "batch_prob": torch.ones(len(boxes)),
        "forward_input_shape": torch.tensor(images.shape),
    }


def _corners(boxes: torch.Tensor) -> torch.Tensor:
    top, left, height, width = boxes.float().unbind(1)
    bottom, right = top + height - 1, left + width - 1
    return torch.stack([left, top, right, top, right, bottom, left, bottom], dim=1).view(-1, 4, 2)


RRC_RECIPES: dict[str, MadeRecipe] = {
    "fastload": fastload,
    "torchvision": torchvision,
    "kornia": kornia,
    "kornia_compiled": partial(kornia, compiled=True),
}
DEIT_RECIPES: dict[str, MadeRecipe] = {
    "fastload": fastload_deit,
    "torchvision": torchvision_deit,
    "kornia": kornia_deit,
    "kornia_compiled": partial(kornia_deit, compiled=True),
}
