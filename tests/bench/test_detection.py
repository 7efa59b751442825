"""The check of the resize for detection, a case of ``kernels``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fastload.bench import WrongValuesError
from fastload.bench.subjects.detection_case import DETECTION_RESIZE

CPU = torch.device("cpu")
BATCH, SIDE = 64, 32


def check(name, change=lambda images: images, after=lambda images: images):
    """Check a subject, with something done to what goes in and comes out."""
    resize = DETECTION_RESIZE.build(name, SIDE, CPU, torch.contiguous_format)
    images = DETECTION_RESIZE.inputs(BATCH, SIDE, CPU, 0)

    def changed(given):
        return after(resize(change(given)))

    DETECTION_RESIZE.check(name, changed, images, torch.contiguous_format)


@pytest.mark.parametrize("name", ["fastload", "torchvision"])
def test_right_values_pass(name):
    check(name)


@pytest.mark.parametrize(
    "change",
    [
        {"change": lambda images: replace(images, key=images.key.advanced(BATCH))},
        {"after": lambda images: images[1:]},
        {"after": lambda images: [image.mT for image in images]},
        {"after": lambda images: [image.float() for image in images]},
        {"after": lambda images: [image + 0.05 for image in images]},
        {"after": lambda images: [image * torch.nan for image in images]},
    ],
    ids=["other flips", "one missing", "transposed", "other dtype", "brighter", "nan"],
)
def test_wrong_values_are_found(change):
    with pytest.raises(WrongValuesError, match="torchvision is wrong"):
        check("torchvision", **change)


def test_the_shorter_side_and_at_most_the_longer_are_those_of_torchvisions_detectors():
    images = DETECTION_RESIZE.inputs(256, 224, CPU, 0)
    assert len(images.images) == 16
    assert all(min(size) <= 800 and max(size) <= 1333 for size in images.sizes)
    assert all(min(size) == 800 or max(size) == 1333 for size in images.sizes)


def test_the_floor_counts_the_images_and_the_result():
    images = DETECTION_RESIZE.inputs(BATCH, SIDE, CPU, 0)
    sides = [*images.images.sizes.tolist(), *images.sizes, *images.sizes]
    assert DETECTION_RESIZE.bytes_to_move(images) == 3 * sum(height * width for height, width in sides)
