"""What is known of functions of other packages: whether pixels keep their places, and for what is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fastload.arguments import not_a_class, quoted

__all__ = ["Photometric", "keeps_places", "remark_on_draws"]

Function = Callable[..., Any]

# Of torchvision, in both of its versions.
PHOTOMETRIC = frozenset(
    {
        *("ColorJitter", "ConvertImageDtype", "GaussianBlur", "GaussianNoise", "Grayscale", "Identity", "JPEG"),
        *("LinearTransformation", "Normalize", "RGB", "RandomAdjustSharpness", "RandomAutocontrast"),
        *("RandomChannelPermutation", "RandomEqualize", "RandomErasing", "RandomGrayscale", "RandomInvert"),
        *("RandomPhotometricDistort", "RandomPosterize", "RandomSolarize", "ToDtype", "ToImage", "ToPureTensor"),
    }
)
RANDOM = ("Random", "AugMix", "AutoAugment", "ColorJitter", "ElasticTransform", "GaussianBlur", "JPEG", "RandAugment",
          "ScaleJitter", "TrivialAugment")  # fmt: skip


class Photometric:
    """A function of images that changes their values, and leaves each pixel in its place.

    >>> from fastload import transforms as T
    >>> T.Compose([T.Photometric(torch.neg)])(torch.ones(1, 1, 1, 2))
    tensor([[[[-1., -1.]]]])

    In a ``Compose`` a function does not need this, unless the batch has boxes, masks or keypoints: then one of which
    nothing is known is refused, since it may move the pixels that they describe.

    Raises:
        TypeError: ``function`` is not callable.
    """

    def __init__(self, function: Function) -> None:
        not_a_class("function must be callable on a batch of images", function)
        if not callable(function):
            raise TypeError(f"function must be callable on a batch of images; got {quoted(function)}")
        self.function = function

    def __repr__(self) -> str:
        return f"Photometric({self.function!r})"

    def __call__(self, images: torch.Tensor) -> Any:
        """What the function returns for ``images``."""
        return self.function(images)


def keeps_places(function: Function) -> bool:
    """Whether a function is known to leave each pixel in its place.

    >>> from torchvision.transforms import v2
    >>> keeps_places(v2.ColorJitter()), keeps_places(v2.RandomRotation(10)), keeps_places(lambda images: images)
    (True, False, False)

    Known are :class:`Photometric`, torchvision's and kornia's photometric transforms, and containers of these.
    """
    if (members := _members(function)) is not None:
        return all(map(keeps_places, members))
    if _is_of(function, "torchvision.transforms"):
        return type(function).__name__ in PHOTOMETRIC
    is_intensity = any(base.__name__ == "IntensityAugmentationBase2D" for base in type(function).__mro__)
    return isinstance(function, Photometric) or is_intensity or _is_of(function, "kornia.enhance", "kornia.color")


def remark_on_draws(function: Function) -> str | None:
    """Say if a function draws once for a whole batch, as random transforms of torchvision do."""
    if isinstance(function, Photometric):
        return remark_on_draws(function.function)
    if (members := _members(function)) is not None:
        return next(filter(None, map(remark_on_draws, members)), None)
    name = type(function).__name__
    if not _is_of(function, "torchvision.transforms") or not name.startswith(RANDOM):
        return None
    lowest, *_, highest = getattr(function, "quality", (0, 100))  # of JPEG
    if getattr(function, "p", None) in (0, 1) or lowest == highest:
        return None
    return (
        f"torchvision's {name} draws once for a whole batch, so that all its images change alike: transforms of "
        "fastload.transforms draw for each image, and torchvision's do in the data set"
    )


def _members(function: Function) -> Iterable[Function] | None:
    """The transforms in a container; None if it is none."""
    if isinstance(function, torch.nn.Sequential):
        return list(function)
    if _is_of(function, "torchvision.transforms"):
        members: Iterable[Function] | None = getattr(function, "transforms", None)
        return members
    return None


def _is_of(function: Function, *packages: str) -> bool:
    return type(function).__module__.startswith(packages)
