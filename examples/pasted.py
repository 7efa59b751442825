"""``Pasted``: photographs with pasted objects, whose boxes, masks and keypoints are known exactly.

>>> image, target = Pasted(images=1000)[7]
>>> image.dtype, sorted(target)
(torch.uint8, ['boxes', 'image_id', 'keypoints', 'labels', 'masks'])
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from PIL import Image, ImageDraw
from skimage import data
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.transforms.v2.functional import pil_to_tensor

__all__ = ["CLASSES", "KEYPOINTS", "Pasted"]

# Each class has a photograph that its objects are cut from, and an outline. The outline's right half is given from tip
# to foot, x to the right, y downwards, in units of half the object's length.
ROUND = [(0.65 * np.cos(angle), 0.35 + 0.65 * np.sin(angle)) for angle in np.linspace(-0.4, np.pi / 2, 12)]
CLASSES = {
    "arrow": ("coffee", [(0, -1), (0.7, -0.2), (0.3, -0.2), (0.3, 1), (0, 1)]),
    "drop": ("immunohistochemistry", [(0, -1), *ROUND]),
    "heart": ("hubble_deep_field", [(0, -1), (0.8, 0.1), (0.95, 0.5), (0.8, 0.85), (0.45, 1), (0.15, 0.9), (0, 0.65)]),
    "kite": ("grass", [(0, -1), (0.65, -0.3), (0, 1)]),
}
# On the axis of symmetry, so that mirroring has no left and right keypoint to swap.
KEYPOINTS = {"tip": (0, -0.75), "middle": (0, -0.1), "foot": (0, 0.5)}

# The two splits share no background, and cut their objects from different parts of a photograph.
BACKGROUNDS = {
    "train": ("astronaut", "brick", "cat", "coins", "gravel", "rocket"),
    "held_out": ("camera", "clock", "stereo_motorcycle"),
}
PARTS = {"train": (0, 2 / 3), "held_out": (2 / 3, 1)}  # start and end, in widths

SIDES = 240, 400  # of an image, in pixels
HALF_LENGTHS = 0.1, 0.2  # of an object, as parts of the image's shorter side
MOST_OBJECTS = 5


class Pasted(Dataset[tuple[Tensor, dict]]):
    """Photographs of different sizes, each with 1 to 5 objects that do not overlap, at any angle.

    Item ``index`` depends only on ``split``, ``seed`` and ``index``. It is an image, uint8 (3, H, W), and a target:

    - ``boxes``, float32 (N, 4), XYXY, the tightest around the masks,
    - ``labels``, int64 (N,), from 1,
    - ``masks``, uint8 (N, H, W), 0 or 1,
    - ``keypoints``, float32 (N, 3, 2), x and y, all visible; 0 is the centre of the first pixel,
    - ``image_id``, the index.

    Args:
        images: the number of images.
        split: "train" or "held_out".
        seed: of all randomness.
    """

    def __init__(self, images: int, split: str = "train", *, seed: int = 0) -> None:
        self.images = images
        self.classes = list(CLASSES)
        self.seed = [seed, list(PARTS).index(split)]
        self.backgrounds = [photograph(name) for name in BACKGROUNDS[split]]
        self.materials = [part_of(photograph(name), *PARTS[split]) for name, _ in CLASSES.values()]

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int) -> tuple[Tensor, dict]:
        if not 0 <= index < self.images:
            raise IndexError(f"index must be from 0 to {self.images - 1}; got {index}")
        rng = np.random.default_rng([*self.seed, index])
        image = self._background(rng)
        boxes, labels, masks, keypoints = [], [], [], []
        for label in rng.integers(len(CLASSES), size=rng.integers(1, MOST_OBJECTS + 1)):
            outline, points = placed(label, image.size, rng)
            mask = drawn(outline, image.size)
            if any((mask & other).any() for other in masks):
                continue
            left, top, right, bottom = box = box_around(mask)
            material = crop(self.materials[label], (right - left, bottom - top), rng)
            image.paste(material, (left, top), Image.fromarray(mask[top:bottom, left:right] * 255))
            boxes.append(box)
            labels.append(int(label) + 1)
            masks.append(mask)
            keypoints.append(points)
        canvas_size = image.height, image.width
        return pil_to_tensor(image), {
            "boxes": tv_tensors.BoundingBoxes(torch.tensor(boxes).float(), format="XYXY", canvas_size=canvas_size),
            "labels": torch.tensor(labels),
            "masks": tv_tensors.Mask(torch.from_numpy(np.stack(masks))),
            "keypoints": tv_tensors.KeyPoints(np.stack(keypoints).astype(np.float32), canvas_size=canvas_size),
            "image_id": index,
        }

    def _background(self, rng: np.random.Generator) -> Image.Image:
        width, height = (int(side) for side in rng.integers(SIDES[0], SIDES[1] + 1, size=2))
        return crop(self.backgrounds[rng.integers(len(self.backgrounds))], (width, height), rng)


@cache
def photograph(name: str) -> Image.Image:
    """A photograph of scikit-image's wheel, in RGB."""
    pixels = getattr(data, name)()
    left_eye = pixels[0] if name == "stereo_motorcycle" else pixels
    return Image.fromarray(left_eye).convert("RGB")


def part_of(image: Image.Image, start: float, end: float) -> Image.Image:
    return image.crop((round(start * image.width), 0, round(end * image.width), image.height))


def crop(image: Image.Image, size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """Cut out a random part of an image and resize it to ``size``, width and height, shrunk by at most two."""
    zoom = rng.uniform(0.6, 1) * min(image.width / size[0], image.height / size[1], 2)
    width, height = zoom * size[0], zoom * size[1]
    left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
    return image.resize(size, box=(left, top, left + width, top + height))


def placed(label: int, size: tuple[int, int], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rotate and scale an object's outline and keypoints, and place them at random within ``size``."""
    _, half = list(CLASSES.values())[label]
    outline = np.array([*half, *((-x, y) for x, y in reversed(half))])
    angle, length = rng.uniform(0, 2 * np.pi), rng.uniform(*HALF_LENGTHS) * min(size)
    turn = length * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    outline, points = outline @ turn, np.array(list(KEYPOINTS.values())) @ turn
    place = rng.uniform(-outline.min(0), np.array(size) - 1 - outline.max(0))
    return outline + place, points + place


def drawn(outline: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return a polygon's mask, uint8 (H, W): 1 inside, 0 outside."""
    mask = Image.new("L", size)
    ImageDraw.Draw(mask).polygon([tuple(corner) for corner in outline.tolist()], fill=1)
    return np.array(mask)


def box_around(mask: np.ndarray) -> tuple[int, int, int, int]:
    (columns,), (rows,) = mask.any(0).nonzero(), mask.any(1).nonzero()
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
