"""Transforms of whole batches, on the device.

>>> from fastload import transforms as T
>>> T.Compose([T.RandomHorizontalFlip(), T.Normalize(mean=[0.5] * 3, std=[0.25] * 3)])
Compose([RandomHorizontalFlip(p=0.5), Normalize([0.5, 0.5, 0.5], [0.25, 0.25, 0.25])])
"""

from typing import TYPE_CHECKING, Any

from fastload.transforms.auto_augment import RandAugment, ThreeAugment, TrivialAugmentWide
from fastload.transforms.blur import GaussianBlur
from fastload.transforms.colour import (
    ColorJitter,
    Grayscale,
    RandomAutocontrast,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from fastload.transforms.compose import Compose
from fastload.transforms.crop import CenterCrop, RandomCrop, RandomResizedCrop
from fastload.transforms.decode import BadImageError, DecodeJpeg
from fastload.transforms.equalize import RandomEqualize
from fastload.transforms.erase import RandomErasing
from fastload.transforms.flip import RandomHorizontalFlip, RandomVerticalFlip
from fastload.transforms.foreign import Photometric
from fastload.transforms.key import Key
from fastload.transforms.lacking import lacking
from fastload.transforms.mix import CutMix, MixUp, MixUpCutMix
from fastload.transforms.multi_view import MultiView
from fastload.transforms.normalize import Normalize
from fastload.transforms.random_apply import RandomApply
from fastload.transforms.random_choice import RandomChoice
from fastload.transforms.random_order import RandomOrder
from fastload.transforms.resize import Resize
from fastload.transforms.sharpness import RandomAdjustSharpness
from fastload.transforms.transform import Transform

__all__ = [
    "BadImageError",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "DecodeJpeg",
    "GaussianBlur",
    "Grayscale",
    "Key",
    "MixUp",
    "MixUpCutMix",
    "MultiView",
    "Normalize",
    "Photometric",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "ThreeAugment",
    "Transform",
    "TrivialAugmentWide",
]

if not TYPE_CHECKING:  # a type checker knows by itself what is not here

    def __getattr__(name: str) -> Any:
        raise lacking(name)
