"""Transforms as people write them: what each framework's own scripts and documents build.

timm and Albumentations are imported when a pipeline of theirs is built: other tests need not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.functional import InterpolationMode

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
AS_FLOAT = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


class Albumentations:
    """The package, imported when it is used; it is not on every machine with a GPU."""

    def __getattr__(self, name: str) -> Any:
        if name == "ToTensorV2":
            return pytest.importorskip("albumentations.pytorch").ToTensorV2
        return getattr(pytest.importorskip("albumentations"), name)


A = Albumentations()


class ReferencePreset:
    """torchvision's references wrap their transforms in such a class."""

    def __init__(self, *steps: Any) -> None:
        self.transforms = v1.Compose(list(steps))

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


def reference(policy: Any = None, erasing: float = 0.0) -> ReferencePreset:
    """The training transform of torchvision's classification reference."""
    steps = [v1.RandomResizedCrop(176, interpolation=InterpolationMode.BILINEAR, antialias=True)]
    steps += [v1.RandomHorizontalFlip(0.5), *([policy] if policy else [])]
    steps += [v1.PILToTensor(), v1.ConvertImageDtype(torch.float), v1.Normalize(MEAN, STD)]
    return ReferencePreset(*steps, *([v1.RandomErasing(erasing)] if erasing else []))


def timm_training(**options: Any) -> Any:
    from timm.data import create_transform  # noqa: PLC0415

    return create_transform(**{"input_size": 224, "is_training": True, "use_prefetcher": False, **options})


def contrastive(size: int, scale: tuple[float, float], jitter: float, blur: float, *more: Any) -> v1.Compose:
    """What SimCLR made usual, with sizes and strengths of each method."""
    return v1.Compose(
        [
            v1.RandomResizedCrop(size, scale=scale),
            v1.RandomHorizontalFlip(),
            v1.RandomApply([v1.ColorJitter(0.8 * jitter, 0.8 * jitter, 0.8 * jitter, 0.2 * jitter)], p=0.8),
            v1.RandomGrayscale(p=0.2),
            v1.RandomApply([v1.GaussianBlur(23, (0.1, 2.0))], p=blur),
            *more,
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
        ]
    )


def detection(*augmentation: Any) -> v2.Compose:
    """The training transform of torchvision's detection reference, with ``--use-v2``."""
    clean = [v2.ConvertBoundingBoxFormat("XYXY"), v2.SanitizeBoundingBoxes(), v2.ToPureTensor()]
    return v2.Compose([*augmentation, v2.RandomHorizontalFlip(0.5), v2.ToImage(), AS_FLOAT[0], *clean])


# By what it is: how to build it, and what becomes of it; "moves" is all of it, else the steps that stay.
PIPELINES: dict[str, tuple[Callable[[], Any], str]] = {
    "torchvision, classification weights": (torchvision.models.ResNet50_Weights.DEFAULT.transforms, "moves"),
    "torchvision, detection weights": (
        torchvision.models.detection.MaskRCNN_ResNet50_FPN_Weights.DEFAULT.transforms,
        "moves",
    ),
    "torchvision, segmentation weights": (
        torchvision.models.segmentation.FCN_ResNet50_Weights.DEFAULT.transforms,
        "moves",
    ),
    "torchvision, video weights": (
        torchvision.models.video.R3D_18_Weights.DEFAULT.transforms,
        "VideoClassification",
    ),
    "torchvision reference, evaluation": (
        lambda: ReferencePreset(
            v1.Resize(232, antialias=True),
            v1.CenterCrop(224),
            v1.PILToTensor(),
            v1.ConvertImageDtype(torch.float),
            v1.Normalize(MEAN, STD),
        ),
        "moves",
    ),
    "torchvision reference, training": (reference, "moves"),
    "torchvision reference, ResNet's new recipe": (lambda: reference(v1.TrivialAugmentWide(), 0.1), "moves"),
    "torchvision reference, RandAugment": (lambda: reference(v1.RandAugment()), "moves"),
    "torchvision reference, AutoAugment": (
        lambda: reference(v1.AutoAugment()),
        "RandomResizedCrop, RandomHorizontalFlip, AutoAugment",
    ),
    "torchvision reference, AugMix": (
        lambda: reference(v1.AugMix()),
        "RandomResizedCrop, RandomHorizontalFlip, AugMix",
    ),
    "torchvision documents, v2 classification": (
        lambda: v2.Compose([v2.RandomResizedCrop((224, 224), antialias=True), v2.RandomHorizontalFlip(0.5), *AS_FLOAT]),
        "moves",
    ),
    "torchvision documents, v2 from images": (
        lambda: v2.Compose(
            [
                v2.ToImage(),
                v2.ToDtype(torch.uint8, scale=True),
                v2.RandomResizedCrop(224),
                v2.RandomHorizontalFlip(),
                *AS_FLOAT,
            ]
        ),
        "moves",
    ),
    "PyTorch tutorial, CIFAR-10": (lambda: v1.Compose([v1.ToTensor(), v1.Normalize((0.5,) * 3, (0.5,) * 3)]), "moves"),
    "PyTorch tutorial, transfer learning": (
        lambda: v1.Compose(
            [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
        ),
        "moves",
    ),
    "PyTorch example, MNIST": (lambda: v1.Compose([v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,))]), "moves"),
    "CIFAR-10 as in ResNet's paper": (
        lambda: v1.Compose(
            [v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
        ),
        "moves",
    ),
    "CIFAR-10, padded by reflection": (
        lambda: v1.Compose(
            [v1.RandomCrop(32, padding=4, padding_mode="reflect"), v1.ToTensor(), v1.Normalize(MEAN, STD)]
        ),
        "RandomCrop",
    ),
    "random rotation before all": (
        lambda: v1.Compose([v1.RandomRotation(10), v1.RandomResizedCrop(224), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
        "RandomRotation",
    ),
    "a function of the user": (
        lambda: v1.Compose([v1.Lambda(lambda image: image.convert("RGB")), v1.Resize((64, 64)), v1.ToTensor()]),
        "<lambda>",
    ),
    "timm, evaluation": (lambda: timm_training(is_training=False), "moves"),
    "timm, create_transform": (lambda: timm_training(auto_augment=None), "moves"),
    "timm, random interpolation (default of train.py)": (
        lambda: timm_training(auto_augment=None, interpolation="random"),
        "moves",
    ),
    "timm, erasing": (lambda: timm_training(auto_augment=None, re_prob=0.25, re_mode="pixel"), "moves"),
    "timm, grey, jitter and blur at times": (
        lambda: timm_training(auto_augment=None, color_jitter_prob=0.8, grayscale_prob=0.2, gaussian_blur_prob=0.1),
        "moves",
    ),
    "timm, RandAugment of its own": (
        lambda: timm_training(auto_augment="rand-m9-mstd0.5-inc1"),
        "RandomResizedCropAndInterpolation, RandomHorizontalFlip, RandAugment",
    ),
    "SimCLR": (lambda: contrastive(224, (0.08, 1.0), 1.0, 0.5), "moves"),
    "MoCo v2": (lambda: contrastive(224, (0.2, 1.0), 0.5, 0.5), "moves"),
    "BYOL, second view": (lambda: contrastive(224, (0.08, 1.0), 0.5, 0.1, v1.RandomSolarize(128, p=0.2)), "moves"),
    "SwAV, small crops": (
        lambda: v1.Compose(
            [
                v1.RandomResizedCrop(96, scale=(0.05, 0.14)),
                v1.RandomHorizontalFlip(p=0.5),
                v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
                v1.RandomGrayscale(p=0.2),
                v1.ToTensor(),
                v1.Normalize(MEAN, STD),
            ]
        ),
        "moves",
    ),
    "DINO, local views": (lambda: contrastive(96, (0.05, 0.4), 0.5, 0.5), "moves"),
    "Albumentations documents, classification": (
        lambda: A.Compose(
            [
                A.RandomCrop(width=128, height=128),
                A.HorizontalFlip(p=0.5),
                A.RandomBrightnessContrast(p=0.2),
                A.Normalize(),
                A.ToTensorV2(),
            ]
        ),
        "RandomCrop, HorizontalFlip, RandomBrightnessContrast",
    ),
    "Albumentations documents, ImageNet": (
        lambda: A.Compose(
            [A.RandomResizedCrop(size=(224, 224)), A.HorizontalFlip(p=0.5), A.Normalize(), A.ToTensorV2()]
        ),
        "RandomResizedCrop",
    ),
    "Albumentations, crops of one size": (
        lambda: A.Compose([A.CenterCrop(64, 64), A.VerticalFlip(), A.ToGray(p=0.2), A.Normalize(), A.ToTensorV2()]),
        "moves",
    ),
}

CLEANED = "ConvertBoundingBoxFormat, SanitizeBoundingBoxes"  # they change targets, which stay in the worker

# The same for transforms that are called with boxes or masks and their image.
JOINT: dict[str, tuple[Callable[[], Any], str]] = {
    "torchvision reference, detection, hflip": (detection, CLEANED),
    "torchvision reference, detection, lsj": (
        lambda: detection(
            v2.ScaleJitter((1024, 1024)), v2.RandomCrop((1024, 1024), fill=(123, 117, 104), pad_if_needed=True)
        ),
        f"ScaleJitter, RandomCrop, {CLEANED}",
    ),
    "torchvision reference, detection, multiscale": (
        lambda: detection(v2.RandomShortestSize((480, 512, 544), max_size=1333)),
        f"RandomShortestSize, {CLEANED}",
    ),
    "torchvision reference, detection, ssd": (
        lambda: detection(v2.RandomPhotometricDistort(), v2.RandomZoomOut(), v2.RandomIoUCrop()),
        f"RandomPhotometricDistort, RandomZoomOut, RandomIoUCrop, {CLEANED}",
    ),
    "torchvision reference, segmentation": (
        lambda: v2.Compose(
            [
                v2.PILToTensor(),
                v2.RandomResize(260, 1040),
                v2.RandomHorizontalFlip(0.5),
                v2.RandomCrop(480, pad_if_needed=True, fill={tv_tensors.Mask: 255, "others": 0}),
                v2.ToDtype({torch.Tensor: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
                v2.Normalize(MEAN, STD),
                v2.ToPureTensor(),
            ]
        ),
        "PILToTensor, RandomResize, RandomHorizontalFlip, RandomCrop, ToDtype",
    ),
}
