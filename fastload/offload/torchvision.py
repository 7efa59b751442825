"""What becomes of each transform of torchvision, of both of its versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fastload import transforms
from fastload.offload.outcome import (
    Does,
    Format,
    Normalizes,
    Nothing,
    OnTargets,
    Outcome,
    Scales,
    Stays,
    TargetRole,
    Values,
)
from fastload.offload.package import package_of
from fastload.offload.takes import COLOURS, Takes
from fastload.structure.loaded_types import loaded_types

__all__ = ["PILLOWS", "TRANSLATIONS", "outcome", "preset_steps"]

# How Pillow resizes otherwise than fastload.
PILLOWS = {"nearest": "nearest: Pillow takes other pixels"}
BESIDE = "boxes or masks beside the image would follow"
PLAIN = "boxes and masks are plain tensors by then"
EQUALIZED = (torch.uint8, torch.float32)  # of 16 bits, torchvision's makes white black
Translation = Callable[[Any, Values], Outcome]


def outcome(step: Any, values: Values) -> Outcome:
    """What becomes of a transform of torchvision's."""
    if package_of(step) != "torchvision":  # RandomApply and others hold steps of the user's, too
        return Stays("fastload does not know it")
    translate = TRANSLATIONS.get(type(step).__name__)
    if translate is None:
        return Stays("fastload has none like it")
    if getattr(step, "_forward_hooks", None) or getattr(step, "_forward_pre_hooks", None):
        return Stays("has hooks")
    if values.format is Format.DOUBLE and translate is not _to_dtype:
        return Stays("computes in float64")
    try:
        return translate(step, values)
    except (TypeError, ValueError) as error:  # fastload's own refusal of an argument
        return Stays(str(error))


def _geometric(step: Any, values: Values, transform: Any, *, makes_one_size: bool, fill: Any = 0) -> Outcome:
    """A crop or a resize."""
    if (why := _why_targets_hold_it(values)) is not None:
        return Stays(why)
    interpolation = getattr(transform, "interpolation", "")
    if interpolation in PILLOWS and values.format is Format.LOADED:
        return Stays(PILLOWS[interpolation])
    if values.targets is TargetRole.TOGETHER and type(step).__name__ != "Resize":
        return Stays("boxes cut away would be left out at once")
    # Bicubic goes beyond the values of an image. Floats keep that, bytes are clipped.
    has_units = fill not in (0, None) or interpolation == "bicubic"
    return Does(transform, makes_one_size, has_units=has_units)


def _why_targets_hold_it(values: Values) -> str | None:
    """Why targets would follow a geometric transform that they do not follow in torchvision; None if they do."""
    if values.targets is TargetRole.BESIDE:
        return BESIDE
    return PLAIN if values.targets_are_plain else None


def _resize(step: Any, values: Values) -> Outcome:
    transform = transforms.Resize(step.size, step.interpolation, step.max_size, step.antialias)
    return _geometric(step, values, transform, makes_one_size=isinstance(transform.size, tuple))


def _random_resized_crop(step: Any, values: Values) -> Outcome:
    transform = transforms.RandomResizedCrop(step.size, step.scale, step.ratio, step.interpolation, step.antialias)
    return _geometric(step, values, transform, makes_one_size=True)


def _random_crop(step: Any, values: Values) -> Outcome:
    transform = transforms.RandomCrop(step.size, step.padding, step.pad_if_needed, _fill(step.fill), step.padding_mode)
    return _geometric(step, values, transform, makes_one_size=True, fill=step.fill)


def _center_crop(step: Any, values: Values) -> Outcome:
    return _geometric(step, values, transforms.CenterCrop(step.size), makes_one_size=True)


def _flip(step: Any, values: Values) -> Outcome:
    if (why := _why_targets_hold_it(values)) is not None:
        return Stays(why)
    return Does(getattr(transforms, type(step).__name__)(step.p), commutes=True)


def _colour(
    transform: Any,
    values: Values,
    *,
    has_units: bool = False,
    takes_batch: bool = False,
    dtypes: tuple[torch.dtype, ...] | None = None,
) -> Outcome:
    if values.format is Format.NORMALIZED:
        return Stays("changes normalised values")
    if takes_batch and not values.have_one_size:
        return Stays("needs images of one size: crop before it")
    takes = Takes(dtypes=dtypes) if values.are_tensors else Takes(COLOURS, dtypes)
    return Does(transform, commutes=True, has_units=has_units, takes=takes)


def _color_jitter(step: Any, values: Values) -> Outcome:
    return _colour(transforms.ColorJitter(step.brightness, step.contrast, step.saturation, step.hue), values)


def _grayscale(step: Any, values: Values) -> Outcome:  # noqa: ARG001
    return Stays(f"makes {step.num_output_channels} channels of any number")


def _with_probability(step: Any, values: Values) -> Outcome:
    return _colour(getattr(transforms, type(step).__name__)(step.p), values)


def _posterize(step: Any, values: Values) -> Outcome:
    return _colour(transforms.RandomPosterize(step.bits, step.p), values)


def _solarize(step: Any, values: Values) -> Outcome:
    return _colour(transforms.RandomSolarize(step.threshold, step.p), values, has_units=True)


def _sharpness(step: Any, values: Values) -> Outcome:
    return _colour(transforms.RandomAdjustSharpness(step.sharpness_factor, step.p), values, takes_batch=True)


def _equalize(step: Any, values: Values) -> Outcome:
    if values.format is Format.UNIT and values.dtype not in EQUALIZED:
        return Stays(f"equalises {values.dtype}")
    return _colour(transforms.RandomEqualize(step.p), values, takes_batch=True, dtypes=EQUALIZED)


def _blur(step: Any, values: Values) -> Outcome:
    return _colour(transforms.GaussianBlur(step.kernel_size, step.sigma), values, takes_batch=True)


def _rand_augment(step: Any, values: Values) -> Outcome:
    transform = transforms.RandAugment(
        step.num_ops, step.magnitude, step.num_magnitude_bins, step.interpolation, _fill(step.fill)
    )
    return _augment(transform, values)


def _trivial_augment(step: Any, values: Values) -> Outcome:
    return _augment(
        transforms.TrivialAugmentWide(step.num_magnitude_bins, step.interpolation, _fill(step.fill)), values
    )


def _augment(transform: Any, values: Values) -> Outcome:
    if values.targets is not TargetRole.NONE:
        return Stays("torchvision's leaves targets where they were")
    if values.format is not Format.LOADED:
        return Stays("changes floating-point values")
    return _colour(transform, values, takes_batch=True, dtypes=EQUALIZED)


def _erasing(step: Any, values: Values) -> Outcome:
    value = "random" if step.value is None else step.value  # version 2 has None for noise
    if value == "random" and values.format is Format.LOADED:
        return Stays("noise among bytes")
    has_units = value == "random" or any(each != 0 for each in (value if isinstance(value, Sequence) else [value]))
    return Does(transforms.RandomErasing(step.p, step.scale, step.ratio, value), commutes=True, has_units=has_units)


def _to_tensor(step: Any, values: Values) -> Outcome:  # noqa: ARG001
    return Stays("takes a Pillow image or an array") if values.are_tensors else Scales(takes=Takes(tensors=False))


def _to_dtype(step: Any, values: Values) -> Outcome:
    if isinstance(step.dtype, dict):
        return Stays("converts each type of targets in its own way")
    if not values.are_tensors:
        return Stays("leaves Pillow images as they are: put ToImage before it")
    if step.dtype is torch.uint8 and values.format is Format.LOADED and getattr(step, "scale", True):
        return Nothing("are bytes already", takes=Takes(dtypes=(torch.uint8,)))
    if not step.dtype.is_floating_point or step.dtype is torch.float64:
        makes = Format.DOUBLE if step.dtype.is_floating_point else Format.LOADED
        return Stays(f"converts to {step.dtype}", makes)
    if values.format is Format.LOADED and not getattr(step, "scale", True):
        return Stays("does not scale values to 0 to 1", Format.UNIT)
    return Scales(step.dtype, at_once=values.format is Format.DOUBLE)


def _normalize(step: Any, values: Values) -> Outcome:
    if values.format is Format.NORMALIZED:
        return Stays("normalises a second time")
    mean, std = list(map(float, step.mean)), list(map(float, step.std))
    transform = transforms.Normalize(mean, std)
    if transform.full_scale != 1:
        return Stays(f"mean and std are for values from 0 to 255: {mean}, {std}")
    return Normalizes(mean, std, values.dtype)


def _nothing(step: Any, values: Values) -> Outcome:  # noqa: ARG001
    return Nothing()


def _to_tensor_of_bytes(step: Any, values: Values) -> Outcome:  # noqa: ARG001
    return Nothing(makes_tensors=True)


def _pure(step: Any, values: Values) -> Outcome:  # noqa: ARG001
    if values.targets is not TargetRole.TOGETHER:
        return Nothing()
    return Nothing("targets keep their types", makes_plain=True)


def _on_targets(step: Any, values: Values) -> Outcome:  # noqa: ARG001
    if values.targets_are_plain:
        return Stays(PLAIN)
    return OnTargets() if values.commute else Stays("looks at boxes after they were cut or resized")


def _composed(step: Any, values: Values) -> Outcome:
    """``RandomApply``, ``RandomChoice`` and ``RandomOrder``, if all that they hold moves."""
    inner = [outcome(each, values) for each in step.transforms]
    stays = next((each for each in inner if not isinstance(each, Does)), None)
    if stays is not None:
        return Stays(f"holds one that stays: {stays.why}" if isinstance(stays, Stays) else "holds a conversion")
    members = [each.transform for each in inner if isinstance(each, Does)]
    kind = getattr(transforms, type(step).__name__)
    options = {} if kind is transforms.RandomOrder else {"p": step.p}
    return Does(
        kind(members, **options),
        commutes=all(each.commutes for each in inner if isinstance(each, Does)),
        has_units=any(each.has_units for each in inner if isinstance(each, Does)),
        takes=Takes.all_of(each.takes for each in inner if isinstance(each, Does)),
        makes_one_size=False,
    )


def _fill(fill: Any) -> Any:
    """``fill`` as fastload takes it.

    Raises:
        ValueError: torchvision would take one value for images of one type, and another for those of another.
    """
    if not isinstance(fill, Mapping):
        return 0 if fill is None else fill
    of_vision = loaded_types("torchvision.tv_tensors", "Image", "Video")
    kinds = (torch.Tensor, *loaded_types("PIL.Image", "Image"), *of_vision)
    ours = [fill[key] for key in ((kind if kind in fill else "others") for kind in kinds) if key in fill]
    if any(each != ours[0] for each in ours):
        raise ValueError(f"fill differs from one type of images to another: {fill}")
    masks = {kind: value for kind, value in fill.items() if kind in loaded_types("torchvision.tv_tensors", "Mask")}
    others = {"others": ours[0]} if ours else {}
    return others | masks


TRANSLATIONS: dict[str, Translation] = {
    "CenterCrop": _center_crop,
    "ClampBoundingBoxes": _on_targets,
    "ColorJitter": _color_jitter,
    "ConvertBoundingBoxFormat": _on_targets,
    "ConvertImageDtype": _to_dtype,
    "GaussianBlur": _blur,
    "Grayscale": _grayscale,
    "Identity": _nothing,
    "Normalize": _normalize,
    "PILToTensor": _to_tensor_of_bytes,
    "RandAugment": _rand_augment,
    "RandomAdjustSharpness": _sharpness,
    "RandomApply": _composed,
    "RandomAutocontrast": _with_probability,
    "RandomChoice": _composed,
    "RandomCrop": _random_crop,
    "RandomEqualize": _equalize,
    "RandomErasing": _erasing,
    "RandomGrayscale": _with_probability,
    "RandomHorizontalFlip": _flip,
    "RandomInvert": _with_probability,
    "RandomOrder": _composed,
    "RandomPosterize": _posterize,
    "RandomResizedCrop": _random_resized_crop,
    "RandomSolarize": _solarize,
    "RandomVerticalFlip": _flip,
    "Resize": _resize,
    "SanitizeBoundingBoxes": _on_targets,
    "ToDtype": _to_dtype,
    "ToImage": _to_tensor_of_bytes,
    "ToPureTensor": _pure,
    "ToTensor": _to_tensor,
    "TrivialAugmentWide": _trivial_augment,
}


def preset_steps(preset: Any) -> list[Any] | None:
    """The transforms that a preset of ``weights.transforms()`` does one after another; None if it is another kind."""
    from torchvision.transforms import v2  # noqa: PLC0415  (loaded already: the preset is torchvision's)

    kind = type(preset).__name__
    convert = [v2.PILToTensor(), v2.ConvertImageDtype(torch.float32)]
    if kind == "ObjectDetection":
        return convert
    if kind not in ("ImageClassification", "SemanticSegmentation"):
        return None
    resize = []
    if isinstance(preset.resize_size, list):
        resize = [v2.Resize(preset.resize_size, interpolation=preset.interpolation, antialias=preset.antialias)]
    crop = [v2.CenterCrop(preset.crop_size)] if kind == "ImageClassification" else []
    return [*resize, *crop, *convert, v2.Normalize(preset.mean, preset.std)]
