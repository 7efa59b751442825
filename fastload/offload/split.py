"""``split``: a transform of one image in the worker, in two: what stays there, and what moves to the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fastload.arguments import chosen, flag
from fastload.offload import albumentations, timm, torchvision
from fastload.offload.outcome import (
    SEEDED,
    Does,
    Format,
    Normalizes,
    Nothing,
    OnTargets,
    Outcome,
    Scales,
    Stays,
    Step,
    TargetRole,
    Values,
)
from fastload.offload.package import package_of
from fastload.offload.takes import WHATEVER, Takes
from fastload.offload.unwrap import flattened
from fastload.offload.worker_steps import WorkerSteps
from fastload.transforms import CenterCrop, Compose, Normalize, Photometric, Resize

__all__ = ["Split", "split"]

OUTCOMES = {"torchvision": torchvision.outcome, "timm": timm.outcome}
CONVERSIONS = ("PILToTensor", "ToImage", "ToTensor")  # which take Pillow images
WIDTH = 80  # columns of the table
NAME_WIDTH = 36


@dataclass(frozen=True)
class Split:
    """What stays of a transform in the workers, and what moves to the device.

    ``print`` shows a table of the steps.

    Attributes:
        worker: takes what the original took, and returns the image, as a Pillow image, array or tensor, with the
            targets if it was given any. None where nothing is left to do but decoding and conversions.
        device: does the rest for batches of images, uint8 or what the worker's part made of them; None if nothing can
            move.
        steps: each step of the original, where it is done, and why.
        takes: the images for which ``device`` does the same: modes of Pillow images, and dtypes of tensors.
    """

    worker: Callable[..., Any] | None
    device: Compose | None
    steps: tuple[Step, ...] = field(repr=False)
    takes: Takes = field(default=WHATEVER, repr=False)

    def __str__(self) -> str:
        width = max((len(step.name) for step in self.steps), default=0)
        rows = (f"  {step.name:{width}}  {step.where:8}{step.why}".rstrip() for step in self.steps)
        return "\n".join(row if len(row) <= WIDTH else f"{row[: WIDTH - 1]}…" for row in rows)


def split(transform: Any, *, targets: str = "none", seeded: bool = False) -> Split:
    """Split a transform of one image in what stays in the workers and what moves to the device.

    >>> from torchvision.transforms import v2
    >>> parts = split(v2.Compose([v2.RandomPerspective(), v2.RandomHorizontalFlip(), v2.RandomInvert()]))
    >>> print(parts)
      RandomPerspective     worker  fastload has none like it
      RandomHorizontalFlip  device
      RandomInvert          device
    >>> parts.device
    Compose([RandomHorizontalFlip(p=0.5), RandomInvert(p=0.5)])

    Together, the two do what the original did. Random parameters have the same distribution, and are drawn for each
    sample; pixels differ by what Pillow rounds between steps. What is not known to be the same stays in the workers,
    and so does all that comes before it.

    Args:
        transform: a ``Compose`` of torchvision (v1 or v2) or Albumentations, a preset of ``weights.transforms()``, what
            timm's ``create_transform`` returns, a single transform, a list of these, or an object whose ``__call__``
            or ``forward`` only calls one of these.
        targets: "none"; "together" if it is called with boxes, masks or keypoints and its image, as for detection and
            segmentation: a step moves only if they follow it on the device as they do in torchvision; "beside" if
            samples have these, and it is called with the image alone: no step moves that would move them on the device.
        seeded: whether the data set seeds or restores random generators around it, for an image and its mask or fixed
            crops, for example: no random step moves, since random numbers of the device come from elsewhere.

    Raises:
        TypeError: ``transform``, or a step of it, is not callable, or ``seeded`` is no bool.
        ValueError: ``targets`` is not one of the three.
    """
    role = TargetRole[chosen("targets", targets, tuple(name.lower() for name in TargetRole.__members__)).upper()]
    is_seeded = flag("seeded", seeded)
    if package_of(transform) == "albumentations":
        worker, device, steps = albumentations.parts(transform, role, is_seeded=is_seeded)
        return Split(worker, Compose(device) if device else None, steps)
    originals = list(flattened(transform))
    values = Values(are_tensors=_are_given_tensors(originals), targets=role)
    outcomes = list(_outcomes(originals, values, is_seeded=is_seeded))
    last = max((place for place, outcome in enumerate(outcomes) if isinstance(outcome, Stays)), default=-1)
    in_worker = [place <= last or isinstance(outcome, OnTargets) for place, outcome in enumerate(outcomes)]
    kept = [each for each, stays in zip(originals, in_worker, strict=True) if stays]
    moved = list(_device_steps(outcomes[last + 1 :]))
    takes = _taken(outcomes[last + 1 :])
    is_idle = not moved and bool(kept)
    steps = tuple(
        Step(_name(each), "worker" if stays else "device", _why(outcome, stays=stays))
        for each, outcome, stays in zip(originals, outcomes, in_worker, strict=True)
    )
    return Split(WorkerSteps(kept) if kept else None, None if is_idle else Compose(moved), steps, takes)


def _are_given_tensors(originals: Sequence[Any]) -> bool:
    """Whether only tensors get through: a normalisation, which refuses Pillow images, comes before any conversion."""
    for each in originals:
        kind = type(each).__name__
        if package_of(each) != "torchvision" or kind not in torchvision.TRANSLATIONS or kind in CONVERSIONS:
            return False
        if kind == "Normalize":
            return True
    return False


def _outcomes(originals: Sequence[Any], values: Values, *, is_seeded: bool) -> Iterator[Outcome]:
    for each in originals:
        outcome = OUTCOMES.get(package_of(each), _unknown)(each, values)
        if is_seeded and isinstance(outcome, Does) and not isinstance(outcome.transform, CenterCrop | Resize):
            outcome = Stays(SEEDED)
        yield outcome
        if isinstance(outcome, Stays):
            values.format = outcome.makes or values.format
            values.have_one_size = False
            values.commute = True  # what is moved comes after it
        elif isinstance(outcome, Does):
            values.have_one_size = values.have_one_size or outcome.makes_one_size
            values.commute = values.commute and outcome.commutes
        elif isinstance(outcome, Nothing):
            values.are_tensors = values.are_tensors or outcome.makes_tensors
            values.targets_are_plain = values.targets_are_plain or outcome.makes_plain
        elif isinstance(outcome, Scales):
            values.are_tensors, values.dtype = True, outcome.dtype
            values.format = values.format if values.format is Format.NORMALIZED else Format.UNIT
        elif isinstance(outcome, Normalizes):
            values.format = Format.NORMALIZED


def _unknown(step: Any, values: Values) -> Outcome:  # noqa: ARG001
    return Stays("fastload does not know it")


def _device_steps(outcomes: Sequence[Outcome]) -> Iterator[Any]:
    """The transforms for the device. A conversion of bytes waits for a normalisation, which does it as well."""
    scales: torch.dtype | None = None
    for outcome in outcomes:
        if isinstance(outcome, Scales) and outcome.at_once:
            yield Photometric(Scaled(outcome.dtype))
        elif isinstance(outcome, Scales):
            scales = outcome.dtype
        elif isinstance(outcome, Normalizes):
            yield Normalize(outcome.mean, outcome.std, dtype=outcome.dtype)
            scales = None
        elif isinstance(outcome, Does):
            if outcome.has_units and scales is not None:
                yield Photometric(Scaled(scales))
                scales = None
            yield outcome.transform
    if scales is not None:
        yield Photometric(Scaled(scales))


def _taken(outcomes: Sequence[Outcome]) -> Takes:
    """The images for which the device does the same."""
    conversion = next((place for place, each in enumerate(outcomes) if isinstance(each, Scales)), len(outcomes))
    as_handed = outcomes[: conversion + 1]
    taken = Takes.all_of(outcome.takes for outcome in as_handed if isinstance(outcome, Does | Nothing | Scales))
    normalizes = next((outcome for outcome in outcomes if isinstance(outcome, Normalizes)), None)
    if normalizes is None or any(isinstance(outcome, Scales) for outcome in outcomes):
        return taken
    return taken & Takes(keeps=normalizes.dtype)


class Scaled:
    """Converts images to a floating-point type; bytes to 0 to 1.

    >>> Scaled(torch.float32)(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"to {self.dtype}"

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """The images as ``dtype``."""
        if images.dtype is torch.uint8:
            return images.to(torch.float32).div_(255).to(self.dtype)
        if images.dtype is not torch.bool and not images.dtype.is_floating_point:
            raise TypeError(f"images must be uint8 (0 to 255), bool or floating-point (0 to 1); got {images.dtype}")
        return images.to(self.dtype)


def _name(step: Any) -> str:
    name = type(step).__name__
    if name in ("function", "method", "builtin_function_or_method"):
        name = getattr(step, "__name__", name)
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 1]}…"


def _why(outcome: Outcome, *, stays: bool) -> str:
    if stays and not isinstance(outcome, Stays | OnTargets):
        return "comes before one that stays"
    return outcome.why
