"""What to use for torchvision's transforms that have no counterpart here."""

from __future__ import annotations

__all__ = ["SUBSTITUTES", "lacking"]

_WORKERS = "leave it in the data set's transform, which runs in the workers; fl.offload moves what comes after it"
_GEOMETRY = f"{_WORKERS}; or put v2.{{name}}(...) into T.Compose, if there are no boxes or masks: one draw a batch"
_PHOTOMETRIC = "put T.Photometric(v2.{name}(...)) into T.Compose; or leave it in the data set"
_PHOTOMETRIC_DRAW = "put T.Photometric(v2.{name}(...)) into T.Compose: one draw a batch; or leave it in the data set"
_DECODED = "leave it out: images may be files, or bytes that PILToTensor or ToImage made in the data set"
_DTYPE = "leave it out: T.Normalize takes uint8 images, scales them to 0 to 1, and has dtype="
_BOXES = "leave it out: boxes follow their images, are clamped to them, and are removed where nothing of them is left"
_SEVERAL = "use T.MultiView with a crop for each view"

SUBSTITUTES = {
    "AugMix": _WORKERS,
    "AutoAugment": "use T.RandAugment or T.TrivialAugmentWide; or leave it in the data set's transform",
    "ClampBoundingBoxes": _BOXES,
    "ClampKeyPoints": _WORKERS,
    "ConvertBoundingBoxFormat": _WORKERS,
    "ConvertImageDtype": _DTYPE,
    "ElasticTransform": _GEOMETRY,
    "FiveCrop": _SEVERAL,
    "GaussianNoise": _PHOTOMETRIC,
    "Identity": "leave it out",
    "JPEG": _PHOTOMETRIC_DRAW,
    "Lambda": "put the function itself into T.Compose: it takes and returns a batch of images",
    "LinearTransformation": _PHOTOMETRIC,
    "PILToTensor": _DECODED,
    "Pad": "use T.RandomCrop(size, padding=...); or leave it in the data set's transform",
    "RGB": "leave it out: T.DecodeJpeg gives RGB",
    "RandomAffine": _GEOMETRY,
    "RandomChannelPermutation": _PHOTOMETRIC_DRAW,
    "RandomIoUCrop": _WORKERS,
    "RandomPerspective": _GEOMETRY,
    "RandomPhotometricDistort": "use T.RandomOrder of T.ColorJitter with p=",
    "RandomResize": _WORKERS,
    "RandomRotation": _GEOMETRY,
    "RandomShortestSize": "use T.RandomChoice of T.Resize(side, max_size=...)",
    "RandomZoomOut": _WORKERS,
    "SanitizeBoundingBoxes": _BOXES,
    "SanitizeKeyPoints": _WORKERS,
    "ScaleJitter": _WORKERS,
    "TenCrop": _SEVERAL,
    "ToDtype": _DTYPE,
    "ToImage": _DECODED,
    "ToPILImage": _WORKERS,
    "ToPureTensor": "leave it out: type them as tensors in the data set, or take what comes",
    "ToTensor": _DTYPE,
    "UniformTemporalSubsample": _WORKERS,
}
"""Torchvision's name -> what to do instead."""


def lacking(name: str) -> AttributeError:
    """Return the error for a transform that is not here.

    >>> lacking("TenCrop")
    AttributeError('fastload.transforms has no TenCrop: use T.MultiView with a crop for each view')
    """
    if name not in SUBSTITUTES:
        return AttributeError(f"module 'fastload.transforms' has no attribute {name!r}", name=name)
    return AttributeError(f"fastload.transforms has no {name}: {SUBSTITUTES[name].format(name=name)}", name=name)
