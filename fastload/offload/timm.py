"""What becomes of timm's own transforms; most that ``create_transform`` makes are torchvision's."""

from __future__ import annotations

from typing import Any

import torch

from fastload import transforms
from fastload.offload.outcome import Does, Nothing, Outcome, Scales, Stays, TargetRole, Values
from fastload.offload.takes import Takes
from fastload.offload.torchvision import PILLOWS

__all__ = ["erasing", "outcome"]

REASONS = {"RandAugment": "T.RandAugment has other strengths"}


def outcome(step: Any, values: Values) -> Outcome:
    """What becomes of a transform of timm's."""
    kind = type(step).__name__
    try:
        if kind == "RandomResizedCropAndInterpolation":
            return _random_resized_crop(step, values)
        if kind == "RandomErasing":
            return Does(erasing(step), commutes=True, has_units=True)
    except (TypeError, ValueError) as error:  # fastload's own refusal of an argument
        return Stays(str(error))
    if kind == "MaybeToTensor":
        return Nothing() if values.are_tensors else Scales(takes=Takes(tensors=False))
    if kind in ("MaybePILToTensor", "ToNumpy", "PILToNumpy"):
        return Nothing(makes_tensors=True)
    return Stays(REASONS.get(kind, "fastload has none like it"))


def _random_resized_crop(step: Any, values: Values) -> Outcome:
    if values.targets is not TargetRole.NONE:
        return Stays("targets would follow")
    several = step.interpolation if isinstance(step.interpolation, tuple | list) else [step.interpolation]
    crops = [transforms.RandomResizedCrop(step.size, step.scale, step.ratio, each) for each in several]
    others = next((PILLOWS[crop.interpolation] for crop in crops if crop.interpolation in PILLOWS), None)
    if others is not None:
        return Stays(others)
    return Does(crops[0] if len(crops) == 1 else transforms.RandomChoice(crops), makes_one_size=True)


def erasing(theirs: Any) -> transforms.RandomErasing:
    """The same erasing as timm's: boxes are drawn alike.

    Raises:
        ValueError: fastload has no such erasing.
    """
    if theirs.rand_color or theirs.max_count != 1 or theirs.num_splits > 1:
        mode = "rand" if theirs.rand_color else "pixel" if theirs.per_pixel else "const"
        raise ValueError(
            "fastload erases one box of each image, with re_mode='const' or 'pixel', re_count=1 and re_split=False; "
            f"got re_mode={mode!r}, re_count={theirs.max_count} and splits={theirs.num_splits}: pass re_prob=0 and "
            "erase in your own transform, or use timm's create_loader"
        )
    low, high = torch.tensor(theirs.log_aspect_ratio, dtype=torch.float64).exp().tolist()
    value = "random" if theirs.per_pixel else 0.0
    return transforms.RandomErasing(theirs.probability, (theirs.min_area, theirs.max_area), (low, high), value)
