"""What becomes of one step of a transform: it moves to the device, is done by a conversion there, or stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from fastload.offload.takes import WHATEVER, Takes

__all__ = [
    "SEEDED",
    "Does",
    "Format",
    "Normalizes",
    "Nothing",
    "OnTargets",
    "Outcome",
    "Scales",
    "Stays",
    "Step",
    "TargetRole",
    "Values",
]


SEEDED = "the data set seeds or restores random numbers"  # why a random step stays


class Format(Enum):
    """What is known of an image's values before a step."""

    LOADED = "as loaded: bytes of a Pillow image, or whatever the data set yields"
    UNIT = "floating-point, from 0 to 1"
    NORMALIZED = "normalised"
    DOUBLE = "float64, which fastload does not compute in"


class TargetRole(Enum):
    """What becomes of boxes, masks and keypoints."""

    NONE = "there are none"
    TOGETHER = "they are given to the transform with their image, and follow it"
    BESIDE = "they stand beside the image, and the transform is not given them"


@dataclass
class Values:
    """What is known of the images before a step.

    Attributes:
        format: of their values.
        dtype: of the values, once they are floating-point.
        are_tensors: whether images are tensors for certain: a conversion was before.
        have_one_size: whether all images have one height and width by now.
        targets: what becomes of those.
        targets_are_plain: whether those given together were made plain tensors, which follow nothing in torchvision.
        commute: whether all that was moved so far leaves boxes as valid, large and inside as they are.
    """

    format: Format = Format.LOADED
    dtype: torch.dtype = torch.float32
    are_tensors: bool = False
    have_one_size: bool = False
    targets: TargetRole = TargetRole.NONE
    targets_are_plain: bool = False
    commute: bool = True


@dataclass(frozen=True)
class Does:
    """A step that a transform of fastload does on the device.

    Attributes:
        transform: of fastload.
        makes_one_size: whether all images have one height and width after it.
        commutes: whether it leaves boxes as valid, large and inside as they are.
        has_units: whether an argument is in units of the values.
        takes: the images for which it does the same, if none of what moves has converted them.
    """

    transform: Any
    makes_one_size: bool = False
    commutes: bool = False
    has_units: bool = False
    takes: Takes = WHATEVER
    why: str = ""


@dataclass(frozen=True)
class Scales:
    """A conversion of bytes to floating-point values from 0 to 1, and of others to ``dtype``.

    Attributes:
        dtype: of the result.
        at_once: whether no transform of fastload's can come before it.
        takes: the images that it converts.
    """

    dtype: torch.dtype = torch.float32
    at_once: bool = False
    takes: Takes = WHATEVER
    why: str = "when values are converted"


@dataclass(frozen=True)
class Normalizes:
    """``(value - mean) / std``."""

    mean: Sequence[float]
    std: Sequence[float]
    dtype: torch.dtype = torch.float32
    why: str = ""


@dataclass(frozen=True)
class Nothing:
    """A step that changes no value.

    Attributes:
        makes_tensors: whether it makes tensors of Pillow images.
        makes_plain: whether it makes plain tensors of boxes, masks and keypoints.
        takes: the images that it leaves as they are.
    """

    why: str = "nothing is left to do"
    makes_tensors: bool = False
    makes_plain: bool = False
    takes: Takes = WHATEVER


@dataclass(frozen=True)
class OnTargets:
    """A step that leaves the image alone. It is done in the worker, before what is moved."""

    why: str = "changes targets only"


@dataclass(frozen=True)
class Stays:
    """A step that stays in the worker, as do all before it.

    Attributes:
        makes: the format of values after it, if it is known to be another.
    """

    why: str
    makes: Format | None = None


Outcome = Does | Scales | Normalizes | Nothing | OnTargets | Stays


@dataclass(frozen=True)
class Step:
    """A line of the table.

    Attributes:
        name: of the original step.
        where: "worker" or "device".
        why: the reason, if there is more to say.
    """

    name: str
    where: str
    why: str = ""
