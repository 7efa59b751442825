"""Sample data: real JPEG files in an ``ImageFolder`` layout, cut from the photographs that scikit-image ships."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

__all__ = ["sample_data"]

# Those of skimage.data that lie in its wheel, so nothing is downloaded, and that fill a JPEG as ImageNet's pictures do.
PHOTOGRAPHS = (
    "astronaut",
    "camera",
    "cat",
    "coffee",
    "grass",
    "gravel",
    "hubble_deep_field",
    "immunohistochemistry",
    "rocket",
    "stereo_motorcycle",
)
# Compression at which crops of about 500x375 from these photographs come to ImageNet's 110 kB.
JPEG_QUALITY = 97
HELD_OUT = 5  # one image in so many goes to val/
LONG_SIDE, SHORT_SIDE = (470, 530), (350, 400)
PORTRAIT_SHARE = 0.25
# A class needs one image to train on and one to hold out; the smallest photograph has distinct boxes for so many.
FEWEST, MOST = 2 * len(PHOTOGRAPHS), 100_000
# No crop is larger than this part of its photograph, so that even a small one has hundreds of places for it.
LARGEST_PART = 15 / 16

Box = tuple[int, int, int, int]


def sample_data(root: str | Path, images: int = 1000, *, seed: int = 0) -> Path:
    """Write ``images`` JPEG files that a model can learn from, and return ``root``.

    >>> sample_data("photographs", images=1000)  # doctest: +SKIP
    PosixPath('photographs')

    The layout is ``ImageFolder``'s, ``root/{train,val}/<photograph>/<number>.jpg``, with ten classes: the photograph
    that an image was cut from. Crops are cut at native resolution, never scaled, at random places; they are near
    500x375 pixels, one in five upright, and average about 100 kB, near ImageNet's 110 kB. The small photographs
    (451x300 and 512x512) give what they have: crops up to 15/16 of their sides.

    One image in five is held out in ``val``. No box is cut twice, so no held-out crop is a training crop; but crops of
    one photograph overlap. Held-out accuracy tells whether a model recognises the ten photographs from views that it
    was not trained on. It says nothing about other scenes.

    The same ``images`` and ``seed`` give the same files, byte for byte, with the same Pillow and scikit-image. ``root``
    is filled when all files are written, so an interrupted call leaves no half of a data set there.

    Args:
        root: a folder that is empty or does not exist yet.
        images: how many files in all, training and held-out, from 20 to 100,000.
        seed: of the places and sizes of the crops.

    Raises:
        ValueError: ``images`` is below 20 or above 100,000.
        FileExistsError: ``root`` has something in it already, or is a file.
        ModuleNotFoundError: scikit-image is not installed.
    """
    root = Path(root)
    if not FEWEST <= images <= MOST:
        raise ValueError(f"images must be from {FEWEST} to {MOST:,}; got {images}")
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        raise FileExistsError(f"{root} is there already and not an empty folder: name a new one, or empty it first")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.resolve().parent, prefix=".fastload-") as unfinished:
        for index, name in enumerate(PHOTOGRAPHS):
            share = images * (index + 1) // len(PHOTOGRAPHS) - images * index // len(PHOTOGRAPHS)
            _write_crops(Path(unfinished), name, share, random.Random(f"{name} {seed}"))
        for split in ("val", "train"):
            (Path(unfinished) / split).rename(root / split)
    return root


def _write_crops(root: Path, name: str, count: int, rng: random.Random) -> None:
    photograph = _load(name)
    held_out = max(1, count // HELD_OUT)
    for split in ("train", "val"):
        (root / split / name).mkdir(parents=True)
    for number, box in enumerate(_distinct_boxes(photograph.size, count, rng)):
        split = "val" if number < held_out else "train"
        photograph.crop(box).save(root / split / name / f"{number:05}.jpg", quality=JPEG_QUALITY)


def _load(name: str) -> Image.Image:
    try:
        from skimage import data  # noqa: PLC0415 (optional: extra "demo")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'sample data is cut from the photographs of scikit-image, which is missing: pip install "fastload[demo]"'
        ) from error
    pixels = getattr(data, name)()
    left_eye = pixels[0] if name == "stereo_motorcycle" else pixels
    return Image.fromarray(left_eye).convert("RGB")


def _distinct_boxes(size: tuple[int, int], count: int, rng: random.Random) -> Iterator[Box]:
    """Yield ``count`` boxes (left, upper, right, lower), no two alike, within ``size`` (width, height)."""
    seen: set[Box] = set()
    while len(seen) < count:
        box = _random_box(size, rng)
        if box not in seen:
            seen.add(box)
            yield box


def _random_box(size: tuple[int, int], rng: random.Random) -> Box:
    sides = rng.randint(*LONG_SIDE), rng.randint(*SHORT_SIDE)
    if rng.random() < PORTRAIT_SHARE:
        sides = sides[::-1]
    width, height = (min(side, int(limit * LARGEST_PART)) for side, limit in zip(sides, size, strict=True))
    left, upper = rng.randint(0, size[0] - width), rng.randint(0, size[1] - height)
    return left, upper, left + width, upper + height
