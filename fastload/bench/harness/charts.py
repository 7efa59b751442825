"""Test charts: JPEG files whose colours show which part of the image a random crop is, and that it is unchanged.

Red tells the class, green rises from left to right and blue from top to bottom, each over the whole range. So in a
crop, also if resized or mirrored, red is flat and green and blue are straight lines. The ends of the lines tell
which part of the image was cut out.
"""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from fastload.bench.harness.check import WrongValuesError, check_form
from fastload.bench.harness.window import Batches
from fastload.bench.imagenet import MEAN, STD

__all__ = ["RATIO", "SCALE", "check_charts", "write_charts"]

CLASSES = 10
WIDTH, HEIGHT = 500, 375
QUALITY = 97
FULL = 255.0
# Of 255. On a chart these errors add up to less: JPEG's quantisation and halved colour resolution, bytes between
# steps, bfloat16, and the antialiasing filter, which is cut off at a crop's edges. Classes are further apart.
TOLERANCE = 6.0
RED = [30 + 20 * label for label in range(CLASSES)]
# Of the side of an image: how far the tolerance can move a line's end, and a pixel.
SHARE_TOLERANCE = TOLERANCE / FULL + 1 / HEIGHT
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
SIGMAS = 6  # a right subject exceeds them once in 500 million checks


def write_charts(root: Path, each: int) -> Path:
    """Write ``each`` charts for each class, as an image folder, and return ``root``."""
    for label, red in enumerate(RED):
        folder = root / str(label)
        folder.mkdir(parents=True)
        chart = np.empty((HEIGHT, WIDTH, 3))
        chart[..., 0] = red
        chart[..., 1] = FULL * (np.arange(WIDTH) + 0.5) / WIDTH
        chart[..., 2] = FULL * ((np.arange(HEIGHT) + 0.5) / HEIGHT)[:, None]
        image = Image.fromarray(chart.round().astype(np.uint8))
        for number in range(each):
            image.save(folder / f"{number}.jpg", quality=QUALITY)
    return root


def check_charts(
    subject: str,
    batches: Batches,
    *,
    count: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    scale: tuple[float, float] = SCALE,
) -> None:
    """Raise ``WrongValuesError`` unless ``count`` batches of charts were cropped, resized, mirrored and normalised.

    Batches are read after all have arrived, so a batch that a later one overwrote is found.
    """
    with closing(batches):
        delivered = list(islice(batches, count))
    for images, _ in delivered:
        check_form(subject, images, shape, dtype, memory_format)
    images = torch.cat([images.cpu().float() for images, _ in delivered])
    labels = torch.cat([labels.cpu() for _, labels in delivered])
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    _check_values(subject, (images * std + mean) * FULL, labels, scale)


def _check_values(subject: str, images: torch.Tensor, labels: torch.Tensor, scale: tuple[float, float]) -> None:
    """Check values from 0 to 255."""
    red, green, blue = images.unbind(1)
    own_red = torch.tensor(RED)[labels].view(-1, 1, 1)
    x, x_off = _line(green.mean(1))
    y, y_off = _line(blue.mean(2))
    flat = torch.stack([(green - green.mean(1, keepdim=True)), (blue - blue.mean(2, keepdim=True))]).abs().amax()
    offs = {
        "not the colour of its label's class": (red - own_red).abs().max(),
        "not a straight cut": torch.stack([x_off, y_off, flat]).max(),
    }
    for what, off in offs.items():
        if not off <= TOLERANCE:  # also where it is not a number
            raise WrongValuesError(f"{subject} is wrong: an image is {what}, by {off:.3g} of 255")
    _check_boxes(subject, x, y, scale)


def _line(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit a line to each row. Return its ends, (N, 2), as shares of the full range, and the largest distance to it."""
    count = values.shape[1]
    at = torch.arange(count, dtype=torch.float64) - (count - 1) / 2
    values = values.double()
    slope = (values * at).sum(1) / at.square().sum()
    middle = values.mean(1)
    off = (values - middle[:, None] - slope[:, None] * at).abs().max()
    return torch.stack([middle - slope * count / 2, middle + slope * count / 2], dim=1) / FULL, off


def _check_boxes(subject: str, x: torch.Tensor, y: torch.Tensor, scale: tuple[float, float]) -> None:
    """Check the crops, whose ``x`` and ``y`` ends are shares of an image's width and height."""
    width, height = (x[:, 1] - x[:, 0]), (y[:, 1] - y[:, 0])
    area = width.abs() * height
    ratio = width.abs() * WIDTH / (height * HEIGHT)
    relative = 2 * SHARE_TOLERANCE / torch.minimum(width.abs(), height)
    wrong = {
        "is not upright": height <= 0,
        "reaches outside of its image": (torch.cat([x, y], 1) - 0.5).abs().amax(1) > 0.5 + SHARE_TOLERANCE,
        f"has an area outside of {scale}": ~_within(area, scale, relative),
        f"has a ratio of sides outside of {RATIO}": ~_within(ratio, RATIO, relative),
    }
    for what, which in wrong.items():
        if which.any():
            raise WrongValuesError(f"{subject} is wrong: a crop {what}")
    usual, spread = _usual_area(scale)
    chances = {
        "the share of mirrored images": ((width < 0).double(), 0.5, 0.5),
        "the mean area of the crops": (area, usual, spread),
    }
    for what, (values, expected, deviation) in chances.items():
        allowed = SIGMAS * deviation / len(values) ** 0.5 + SHARE_TOLERANCE
        if abs(float(values.mean()) - expected) > allowed:
            raise WrongValuesError(f"{subject} is wrong: {what} is {values.mean():.3g}, not {expected:.3g}")


def _within(values: torch.Tensor, bounds: tuple[float, float], relative: torch.Tensor) -> torch.Tensor:
    return (values >= bounds[0] * (1 - relative)) & (values <= bounds[1] * (1 + relative))


def _usual_area(scale: tuple[float, float], draws: int = 2000) -> tuple[float, float]:
    """Return mean and standard deviation of the share of a chart's area that torchvision cuts out."""
    image = torch.empty(3, HEIGHT, WIDTH, device="meta")
    boxes = [RandomResizedCrop.get_params(image, list(scale), list(RATIO)) for _ in range(draws)]
    areas = [height * width / (HEIGHT * WIDTH) for _, _, height, width in boxes]
    return fmean(areas), pstdev(areas)
