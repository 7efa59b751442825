"""``fill`` by type, as torchvision takes it."""

import pytest
import torch
from torchvision import tv_tensors

from fastload import transforms as T
from fastload.transforms.fill import Fill

IMAGE, MASK = tv_tensors.Image, tv_tensors.Mask


@pytest.mark.parametrize(
    ("fill", "images", "masks"),
    [
        (0.5, 0.5, 0.5),
        (None, None, 0),
        ((7, 7, 7), 7, 7),
        ({MASK: 255, "others": 3}, 3, 255),
        ({IMAGE: 3, MASK: 255}, 3, 255),
        ({torch.Tensor: 3, "others": 255}, 3, 255),
        ({MASK: 255}, None, 255),
        ({IMAGE: [3, 3, 3]}, 3, 0),
    ],
)
def test_a_number_is_for_all_types_and_a_mapping_for_each(fill, images, masks):
    assert Fill.of(fill) == Fill(images, masks)


def test_transforms_say_what_they_fill_with():
    assert repr(T.RandomCrop(8, fill={MASK: 255})).endswith("fill={Mask: 255.0, 'others': None})")
    assert repr(T.RandAugment(fill=7)).endswith("fill=7.0)")


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        ((1, 2, 3), r"fill must be one number for all channels; got \(1, 2, 3\)"),
        ({MASK: (1, 2)}, "fill must be one number for all channels"),
        ("black", "fill must be a number, or numbers by type.*got 'black'"),
        ({"mask": 255}, "fill must have types.*or 'others' for keys; got 'mask'"),
        ([], r"fill must be a number.*got \[\]"),
    ],
)
def test_what_is_no_fill_is_refused(fill, message):
    for make in (lambda: T.RandomCrop(8, fill=fill), lambda: T.TrivialAugmentWide(fill=fill)):
        with pytest.raises((TypeError, ValueError), match=message):
            make()
