"""Sample data: real JPEG files in an ``ImageFolder`` layout, cut from the photographs that scikit-image ships."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from fastload.arguments import integer

__all__ = ["sample_data"]

# Photographs of skimage.data that are in its wheel (no download) and compress to about as many bytes as ImageNet's.
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
# With it, crops of about 500x375 from these photographs come to ImageNet's 110 kB.
JPEG_QUALITY = 97
HELD_OUT = 5  # one image in five goes to val/
LONG_SIDE, SHORT_SIDE = (470, 530), (350, 400)
PORTRAIT_SHARE = 0.25
# A class needs an image in train/ and one in val/; the smallest photograph has enough distinct boxes for its share.
FEWEST, MOST = 2 * len(PHOTOGRAPHS), 100_000
# A crop's sides are at most this share of its photograph's, so there are hundreds of places for it in a small one too.
LARGEST_SHARE = 15 / 16

Box = tuple[int, int, int, int]


def sample_data(root: str | Path, images: int = 1000, *, seed: int = 0) -> Path:
    """Write ``images`` JPEG files that a model can learn from, and return ``root``.

    >>> sample_data("photographs", images=1000)  # doctest: +SKIP
    PosixPath('photographs')

    The layout is ``ImageFolder``'s, ``root/{train,val}/<photograph>/<number>.jpg``. An image's class is the one of ten
    photographs that it was cut from. Crops are cut at native resolution at random places. They have about 500x375
    pixels, one in five in portrait format, and about 100 kB on average; ImageNet's files have 110 kB. Crops of
    the small photographs (451x300 and 512x512) are smaller: up to 15/16 of each side.

    One image in five is in ``val``. No box is cut twice, so no crop is in both folders; but crops of one photograph
    overlap. Accuracy on ``val`` tells whether a model recognises the ten photographs in unseen crops, and nothing about
    other scenes.

    The same ``images`` and ``seed`` give the same bytes with the same versions of Pillow and scikit-image. Files are
    moved to ``root`` once all are written, so an interrupted call leaves no partial data set there.

    Args:
        root: a folder that is empty or does not exist yet.
        images: files in ``train`` and ``val`` together, from 20 to 100,000.
        seed: decides the places and sizes of the crops.

    Raises:
        ValueError: ``images`` is below 20 or above 100,000.
        FileExistsError: ``root`` is a file or a folder that is not empty.
        ModuleNotFoundError: scikit-image is not installed.
    """
    root = Path(root)
    seed = integer("seed", seed)
    if not FEWEST <= integer("images", images) <= MOST:
        raise ValueError(f"images must be from {FEWEST} to {MOST:,}; got {images}")
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        raise FileExistsError(f"{root} exists and is not an empty folder: choose a new folder, or empty this one first")
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
            "sample data is cut from photographs of scikit-image, which is not installed: "
            "pip install scikit-image pooch"
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
    width, height = (min(side, int(limit * LARGEST_SHARE)) for side, limit in zip(sides, size, strict=True))
    left, upper = rng.randint(0, size[0] - width), rng.randint(0, size[1] - height)
    return left, upper, left + width, upper + height
