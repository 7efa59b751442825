"""``prepare``: the demo's settings, filled in and checked before the first step."""

from __future__ import annotations

import difflib
import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import torchvision
from PIL import Image
from torchvision.datasets import ImageFolder

from fastload import __version__
from fastload.data import sample_data
from fastload.environment import cores
from fastload.training.precision import resolve_precision

__all__ = ["SEED", "Sample", "Settings", "prepare"]

SEED = 0

Sample = tuple[str, int]


@dataclass(frozen=True)
class Settings:
    """The model, its data, and how long it trains. ``size`` is the side of the images, in pixels."""

    device: torch.device
    precision: str
    model: str
    size: int
    epochs: int
    batch_size: int
    workers: int
    classes: list[str]
    train: list[Sample]
    held_out: list[Sample]

    @property
    def steps(self) -> int:
        """Training steps of all epochs; the last batch of an epoch is dropped if it is not full."""
        return self.epochs * (len(self.train) // self.batch_size)


@dataclass(frozen=True)
class Defaults:
    """Settings that depend on the device, unless the user gives them."""

    images: int
    epochs: int
    batch_size: int
    size: int


# Two minutes on two cores, for all loops.
ON_CPU = Defaults(images=600, epochs=3, batch_size=32, size=64)
ON_ACCELERATOR = Defaults(images=4096, epochs=5, batch_size=128, size=224)
MOST_WORKERS = 16
# Classes, and images to train on: one class teaches nothing, and batch normalisation cannot train on one image.
FEWEST = 2
# Models that take images of 224x224 only.
FIXED_SIZE = ("vit_", "maxvit_")
# Models that return auxiliary outputs with the prediction, which cross-entropy cannot take.
AUXILIARY = ("googlenet", "inception_v3")


def prepare(
    *,
    device: str | None = None,
    model: str = "resnet18",
    epochs: int | None = None,
    data: Path | None = None,
    images: int | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
) -> Settings:
    """Check the arguments, find or make the photographs, and fill in what is None with the device's defaults.

    Raises:
        ValueError: an unknown device or model; an image that cannot be read; too few classes or images.
        OSError: ``data`` does not exist, is not a folder, or has no images in class folders.
        ModuleNotFoundError: sample data must be made, and scikit-image is not installed.
    """
    where = _find_device(device)
    _check_model(model)
    defaults = ON_CPU if where.type == "cpu" else ON_ACCELERATOR
    images = images or defaults.images
    train, held_out, classes = _split(data or _cached_sample_data(images), images)
    if data:
        _check_images(train + held_out)
    return Settings(
        device=where,
        precision=resolve_precision("auto", where),
        model=model,
        size=ON_ACCELERATOR.size if model.startswith(FIXED_SIZE) else defaults.size,
        epochs=epochs or defaults.epochs,
        batch_size=min(batch_size or defaults.batch_size, len(train)),
        workers=max(1, min(cores() - 1, MOST_WORKERS)) if workers is None else workers,
        classes=classes,
        train=train,
        held_out=held_out,
    )


def _find_device(name: str | None) -> torch.device:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    allowed = ["cpu"]
    if accelerator:
        numbered = [f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())]
        allowed = [accelerator.type, *numbered, "cpu"]
    if name is not None and name not in allowed:
        raise ValueError(f"device must be one of {', '.join(allowed)} on this machine; got {name!r}")
    return torch.device(name or allowed[0])


def _check_model(name: str) -> None:
    allowed = [each for each in torchvision.models.list_models(module=torchvision.models) if each not in AUXILIARY]
    if name not in allowed:
        close = difflib.get_close_matches(name, allowed) or ["resnet18", "mobilenet_v3_small", "vit_b_16"]
        raise ValueError(
            f"model must be a torchvision classification model without auxiliary outputs; got {name!r}: try "
            f"{', '.join(close)} or another of torchvision.models.list_models()"
        )


def _cached_sample_data(images: int) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = cache / "fastload" / f"sample-data-{__version__}-{images}"
    return root if (root / "train").exists() else sample_data(root, images, seed=SEED)


def _split(root: Path, images: int) -> tuple[list[Sample], list[Sample], list[str]]:
    """Return training samples, held-out samples, at most ``images`` in all, always the same, and class names."""
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}: name one that has train/ and val/, or one folder of images a class")
    if (root / "train").is_dir() and (root / "val").is_dir():
        train, held_out = ImageFolder(root / "train"), ImageFolder(root / "val")
        if train.classes != held_out.classes:
            raise ValueError(
                f"train/ and val/ in {root} must have the same classes; got {train.classes} and {held_out.classes}"
            )
        samples = _shuffled(train.samples)[: images - images // 5], _shuffled(held_out.samples)[: images // 5]
    else:
        train = ImageFolder(root)
        chosen = _shuffled(train.samples)[:images]
        samples = chosen[len(chosen) // 5 :], chosen[: len(chosen) // 5]
    if len(train.classes) < FEWEST or len(samples[0]) < FEWEST or not samples[1]:
        raise ValueError(
            f"{root} must hold at least {FEWEST} classes, {FEWEST} images to train on and one to hold out; "
            f"got {len(train.classes)} classes, {len(samples[0])} images and {len(samples[1])}"
        )
    return *samples, train.classes


def _shuffled(samples: list[Sample]) -> list[Sample]:
    return random.Random(SEED).sample(samples, len(samples))


def _check_images(samples: list[Sample]) -> None:
    with ThreadPoolExecutor(cores()) as pool:
        for _ in pool.map(_check_image, (path for path, _ in samples)):
            pass


def _check_image(path: str) -> None:
    try:
        with Image.open(path) as image:
            image.draft("RGB", (1, 1))  # reads all of a JPEG file, but decodes it at an eighth of its size
            image.load()
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{path} is not an image that Pillow can read: replace or remove it ({error})") from error
