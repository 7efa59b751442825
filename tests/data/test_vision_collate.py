"""``default_collate``, but for the types of ``tv_tensors``."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate
from torchvision.tv_tensors import BoundingBoxes, Image, Mask

import fastload as fl
from fastload.data.vision_collate import collate_vision


class Sample(NamedTuple):
    image: torch.Tensor
    label: int


def boxes(size=(4, 4)):
    return BoundingBoxes([[0, 0, 1, 1]], format="XYXY", canvas_size=size)


@pytest.mark.parametrize(
    "sample",
    [
        torch.ones(2),
        (torch.ones(2), 3, "name", 0.5),
        {"image": np.ones((2, 2)), "more": [torch.ones(1), b"bytes"]},
        Sample(torch.ones(3, 2, 2), 1),
    ],
)
def test_what_is_no_tv_tensor_is_collated_as_by_pytorch(sample):
    assert repr(collate_vision([sample] * 3)) == repr(default_collate([sample] * 3))


def test_types_and_attributes_stay():
    image, target = collate_vision(
        [(Image(torch.ones(3, 4, 4)), {"boxes": boxes(), "mask": Mask(torch.ones(4, 4))})] * 2
    )
    assert (type(image), image.shape) == (Image, (2, 3, 4, 4))
    assert (type(target["mask"]), target["mask"].shape) == (Mask, (2, 4, 4))
    assert (type(target["boxes"]), target["boxes"].shape) == (BoundingBoxes, (2, 1, 4))
    assert vars(target["boxes"]) == vars(boxes())
    assert type(collate_vision([Mask(torch.ones(4, 4)), torch.ones(4, 4)])) is torch.Tensor


def test_boxes_of_different_canvases_are_refused():
    with pytest.raises(TypeError, match=r"BoundingBoxes of a batch must agree.*\(4, 4\).*\(4, 5\).*collate_fn=lambda"):
        collate_vision([boxes(), boxes((4, 5))])


def test_without_a_transform_nothing_has_to_follow_and_batches_are_pytorchs():
    loader = DataLoader([(torch.ones(3, 4, 4), boxes(size)) for size in ((4, 4), (4, 5))], batch_size=2)
    (expected,) = loader
    ((_, target),) = fl.PrefetchLoader(loader, device="cpu")
    assert type(target) is torch.Tensor
    assert torch.equal(target, expected[1])
    assert loader.collate_fn is default_collate
    with pytest.raises(TypeError, match="BoundingBoxes of a batch must agree"):
        next(iter(fl.PrefetchLoader(loader, [0.5] * 3, [0.5] * 3, device="cpu")))


def test_a_collate_function_of_the_user_is_left_alone():
    loader = DataLoader([Mask(torch.ones(4, 4))], collate_fn=list)
    assert fl.PrefetchLoader(loader, device="cpu").loader.collate_fn is list
