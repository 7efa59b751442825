"""The check of input stages on test charts."""

from __future__ import annotations

import pytest
import torch
from torchvision.datasets import ImageFolder
from torchvision.transforms import RandomResizedCrop, v2

from fastload.bench import WrongValuesError
from fastload.bench.harness.charts import RATIO, SCALE, check_charts, write_charts
from fastload.bench.imagenet import MEAN, STD

SIDE = 32
BATCH = 20


@pytest.fixture(scope="module")
def charts(tmp_path_factory):
    return write_charts(tmp_path_factory.mktemp("charts") / "root", each=BATCH // 10)


def batches(root, *, crop=None, flip=None, last=None, shift_labels=0):
    """Batches of charts from an ordinary input stage, with one change."""
    transform = v2.Compose(
        [
            crop or v2.RandomResizedCrop(SIDE),
            flip or v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    dataset = ImageFolder(root, transform)
    while True:
        images, labels = zip(*dataset, strict=True)
        images = torch.stack(images)
        yield images if last is None else last(images), torch.tensor(labels).roll(shift_labels)


def check(stage):
    check_charts(
        "it",
        stage,
        count=3,
        shape=(BATCH, 3, SIDE, SIDE),
        dtype=torch.float32,
        memory_format=torch.contiguous_format,
    )


def test_an_ordinary_input_stage_is_right(charts):
    check(batches(charts))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shift_labels": 4}, "not the colour of its label's class"),
        ({"last": lambda images: images.flip(1)}, "not the colour of its label's class"),
        ({"last": lambda images: images * torch.nan}, "not the colour of its label's class, by nan"),
        ({"last": lambda images: images.flip(2)}, "is not upright"),
        ({"last": lambda images: images.cumsum(-1).where(torch.arange(SIDE) > 20, images)}, "is wrong"),
        ({"flip": v2.Identity()}, "the share of mirrored images is 0, not 0.5"),
        ({"crop": v2.Resize((SIDE, SIDE))}, "the mean area of the crops is 0.99"),
        ({"crop": v2.CenterCrop(SIDE)}, "has an area outside of"),
        ({"crop": v2.RandomResizedCrop(SIDE, ratio=(2, 3))}, "has a ratio of sides outside of"),
        ({"crop": v2.Compose([v2.Pad(40), v2.RandomResizedCrop(SIDE)])}, "is wrong"),
        ({"last": lambda images: images[:3]}, "it delivers torch.float32 of shape"),
        ({"last": lambda images: images.double()}, "it delivers torch.float64"),
    ],
)
def test_what_is_wrong_is_named(charts, change, message):
    with pytest.raises(WrongValuesError, match=message):
        check(batches(charts, **change))


def test_a_batch_that_another_overwrote_is_found(charts):
    def one_place():
        place = torch.empty(BATCH, 3, SIDE, SIDE)
        for images, labels in batches(charts):
            order = torch.randperm(BATCH)
            yield place.copy_(images[order]), labels[order]

    with pytest.raises(WrongValuesError, match="not the colour of its label's class"):
        check(one_place())


def test_crops_are_torchvisions():
    """The bounds are those that torchvision's crop has by default."""
    crop = RandomResizedCrop(SIDE)

    assert (tuple(crop.scale), tuple(crop.ratio)) == (SCALE, RATIO)
