"""``package_of``: which package a transform comes from."""

from __future__ import annotations

from typing import Any

__all__ = ["package_of"]

KNOWN = ("torchvision.transforms", "timm.data", "albumentations")


def package_of(step: Any) -> str:
    """The package that a step's class comes from: "torchvision", "timm", …, by the module that defines it."""
    module = type(step).__module__
    return next((each.split(".")[0] for each in KNOWN if module == each or module.startswith(f"{each}.")), "")
