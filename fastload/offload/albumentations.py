"""What becomes of a ``Compose`` of Albumentations, which is called by keyword with arrays (H, W, C)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from fastload import transforms
from fastload.offload.outcome import SEEDED, Step, TargetRole
from fastload.offload.package import package_of

__all__ = ["parts"]

BYTES = 255.0
NO_PEER = "fastload has none like it"
MAKES_FLOATS = ("Normalize", "ToFloat", "Lambda")
CERTAIN = (transforms.CenterCrop, transforms.Normalize)  # the moved transforms that draw nothing
CV2 = "OpenCV resizes without antialiasing"


def parts(compose: Any, targets: TargetRole, *, is_seeded: bool = False) -> tuple[Any, list[Any], tuple[Step, ...]]:
    """The worker's part, the device's transforms and the table of an Albumentations ``Compose``.

    Raises:
        TypeError: it is another object than a ``Compose``.
    """
    if type(compose).__name__ != "Compose":
        raise TypeError(f"of Albumentations, a Compose can be split; got {type(compose).__name__}: Compose([...])")
    steps = list(compose.transforms)
    refused = _why_not(compose, targets)
    outcomes = [refused or outcome for outcome in _outcomes(steps, is_seeded=is_seeded)]
    last = max((place for place, outcome in enumerate(outcomes) if isinstance(outcome, str)), default=-1)
    moved = [outcome for outcome in outcomes[last + 1 :] if outcome is not None]
    table = tuple(
        Step(
            type(step).__name__,
            "worker" if place <= last else "device",
            outcome if isinstance(outcome, str) else "comes before one that stays" if place <= last else "",
        )
        for place, (step, outcome) in enumerate(zip(steps, outcomes, strict=True))
    )
    if last < 0:
        return None, moved, table
    kept = copy.deepcopy(steps[: last + 1])  # a Compose gives its steps random numbers of its own
    return type(compose)(kept, seed=getattr(compose, "seed", None)), moved, table


def _why_not(compose: Any, targets: TargetRole) -> str:
    """Why no step can move; empty if some may."""
    if not any(type(step).__name__ == "ToTensorV2" for step in compose.transforms):
        return "gives an array (H, W, C): add ToTensorV2()"
    if targets is not TargetRole.NONE:
        return "masks, boxes or keypoints are passed"
    if getattr(compose, "processors", None) or getattr(compose, "additional_targets", None):
        return "has parameters for boxes, keypoints or other targets"
    return "" if compose.p == 1 else f"p={compose.p} of the whole"


def _outcomes(steps: Iterable[Any], *, is_seeded: bool) -> Iterator[Any]:
    are_bytes = True
    for step in steps:
        outcome = _outcome(step)
        if isinstance(outcome, transforms.Normalize) and not are_bytes:
            outcome = "comes after a step that makes floats"
        if is_seeded and isinstance(outcome, transforms.Transform) and not isinstance(outcome, CERTAIN):
            outcome = SEEDED
        yield outcome
        are_bytes = are_bytes and not _may_make_floats(step)


def _may_make_floats(step: Any) -> bool:
    """Whether it gives floats for bytes, or may: one of the user's, or one that holds others."""
    return package_of(step) != "albumentations" or hasattr(step, "transforms") or type(step).__name__ in MAKES_FLOATS


def _outcome(step: Any) -> Any:
    """A transform of fastload, None if nothing is left to do, or the reason why the step stays."""
    translate = TRANSLATIONS.get(type(step).__name__) if package_of(step) == "albumentations" else None
    if translate is None:
        return NO_PEER
    try:
        return translate(step)
    except (TypeError, ValueError) as error:  # fastload's own refusal of an argument
        return str(error)


def _always(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda step: make(step) if step.p == 1 else f"p={step.p}, so that sizes or values would differ"


def _normalize(step: Any) -> Any:
    if step.normalization != "standard" or step.max_pixel_value != BYTES:
        return f"normalization={step.normalization!r}, max_pixel_value={step.max_pixel_value}"
    mean, std = (values.ravel().tolist() for values in np.broadcast_arrays(step.mean, step.std))
    transform = transforms.Normalize(mean, std)
    if transform.full_scale != 1:
        return f"mean and std are for values from 0 to 255: {mean}, {std}"
    return transform


def _random_crop(step: Any) -> Any:
    return "pads" if step.pad_if_needed else transforms.RandomCrop((step.height, step.width))


def _center_crop(step: Any) -> Any:
    return "pads" if step.pad_if_needed else UpperCenterCrop((step.height, step.width))


class UpperCenterCrop(transforms.CenterCrop):
    """A box at the centre; of an odd number of pixels around it, the greater half is below or to the right."""

    def sample(self, sizes: torch.Tensor, key: transforms.Key) -> torch.Tensor:  # noqa: ARG002
        size = torch.tensor(self.size)
        if (sizes < size).any():
            smallest = "x".join(map(str, sizes.amin(dim=0).tolist()))
            raise ValueError(f"CenterCrop{self.size} is larger than an image of a batch whose smallest is {smallest}")
        start = (sizes - size) // 2
        return torch.cat([start, size.expand_as(start)], dim=1).int()


def _to_grey(step: Any) -> Any:
    if step.num_output_channels != len("RGB") or step.method != "weighted_average":
        return f"num_output_channels={step.num_output_channels}, method={step.method!r}"
    return transforms.RandomGrayscale(step.p)


TRANSLATIONS: dict[str, Callable[[Any], Any]] = {
    "CenterCrop": _always(_center_crop),
    "HorizontalFlip": lambda step: transforms.RandomHorizontalFlip(step.p),
    "InvertImg": lambda step: transforms.RandomInvert(step.p),
    "Normalize": _always(_normalize),
    "RandomCrop": _always(_random_crop),
    "RandomResizedCrop": lambda _: CV2,
    "Resize": lambda _: CV2,
    "ToGray": _to_grey,
    "ToTensorV2": lambda _: None,
    "VerticalFlip": lambda step: transforms.RandomVerticalFlip(step.p),
}
