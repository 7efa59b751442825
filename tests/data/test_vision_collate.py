"""``default_collate``, but for the types of ``tv_tensors``."""

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL.Image import fromarray
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision.tv_tensors import BoundingBoxes, Image, Mask

import fastload as fl
from fastload import transforms as T
from fastload.data.vision_collate import collate_vision
from fastload.structure.tree import retyped, tensors
from tests.files import saved


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


class Pair(NamedTuple):
    mask: torch.Tensor
    label: torch.Tensor


TARGETS = {
    "a mask and a label": lambda mask, number: (mask, torch.tensor(number)),
    "a label and a mask": lambda mask, number: [torch.tensor(number), mask],
    "a named tuple": lambda mask, number: Pair(mask, torch.tensor(number)),
    "three masks": lambda mask, number: {"masks": [mask, mask.clone(), mask.clone()], "id": number},
    "names": lambda mask, number: (mask, [f"a{number}", f"b{number}"], torch.tensor(number)),
}


def masked(structure, number):
    """An image, and a target in which its mask is."""
    mask = Mask(torch.randint(0, 200, (12, 12), generator=torch.Generator().manual_seed(number), dtype=torch.uint8))
    return mask.expand(3, 12, 12).as_subclass(torch.Tensor).clone(), TARGETS[structure](mask, number)


def assert_masks_follow(batches):
    for images, target in batches:
        masks = [tensor for tensor in tensors(target).values() if isinstance(tensor, Mask)]
        assert masks
        assert all(torch.equal(images[:, 0], mask.as_subclass(torch.Tensor)) for mask in masks)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
@pytest.mark.parametrize("structure", TARGETS)
def test_masks_of_targets_with_as_many_fields_as_a_batch_has_samples_follow_their_own_images(structure, batch_size):
    samples = [masked(structure, number) for number in range(8)]
    assert_masks_follow(fl.PrefetchLoader(DataLoader(samples, batch_size), transform=T.RandomCrop(6), device="cpu"))


@pytest.mark.parametrize("structure", ["a mask and a label", "a label and a mask", "a named tuple"])
def test_they_do_in_batches_of_which_it_is_not_known_who_collated_them(structure):
    batches = [collate_vision([masked(structure, number) for number in range(2)])]
    assert_masks_follow(fl.PrefetchLoader(batches, transform=T.RandomCrop(6), device="cpu"))


class Shard(DataLoader):
    """A loader as training libraries derive it, which changes no batches."""


def test_they_do_from_a_loader_that_derives_from_pytorchs():
    for structure in TARGETS:
        samples = [masked(structure, number) for number in range(6)]
        assert_masks_follow(fl.PrefetchLoader(Shard(samples, 3), transform=T.RandomCrop(6), device="cpu"))


def test_boxes_that_a_function_of_the_user_leaves_in_a_list_follow_their_own_images(monkeypatch):
    def listed(batch, **_):
        return list(batch)

    monkeypatch.setitem(default_collate_fn_map, BoundingBoxes, listed)
    samples = [(torch.zeros(3, 4, 4), boxes().repeat(number + 1, 1).as_subclass(torch.Tensor)) for number in range(3)]
    samples = [(image, retyped(rows, like=boxes())) for image, rows in samples]
    loader = fl.PrefetchLoader(DataLoader(samples, 3), transform=T.RandomHorizontalFlip(1.0), device="cpu")
    ((_, moved),) = loader
    assert [each.tolist() for each in moved] == [[[3, 0, 4, 1]] * count for count in (1, 2, 3)]


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_two_masks_in_files_follow_their_own_images(batch_size):
    samples = []
    for number in range(6):
        _, (mask, _) = masked("a mask and a label", number)
        file = saved(fromarray(mask.numpy()), "PNG")
        samples.append({"image": file, "masks": [file] * 2})
    collate = partial(fl.collate, images="image", masks="masks")
    transform = T.Compose([T.DecodeJpeg(), T.RandomCrop(6)])
    loader = fl.PrefetchLoader(DataLoader(samples, batch_size, collate_fn=collate), transform=transform, device="cpu")
    for batch in loader:
        for masks in batch["masks"]:
            assert torch.equal(batch["image"][:, 0], torch.stack([mask.as_subclass(torch.Tensor) for mask in masks]))


def test_boxes_of_a_pair_in_a_batch_of_two_keep_their_rows():
    samples = [(torch.zeros(3, 4, 4), (boxes(), torch.tensor(number))) for number in range(2)]
    loader = fl.PrefetchLoader(DataLoader(samples, 2), transform=T.CenterCrop(2), device="cpu")
    ((_, (moved, numbers)),) = loader
    assert (moved.tolist(), numbers.tolist()) == ([[[0, 0, 0, 0]], [[0, 0, 0, 0]]], [0, 1])


class Repeated:
    """A loader around another, as training libraries have them."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for _ in range(2):
            yield from self.loader


def test_masks_follow_from_a_loader_that_another_holds():
    samples = [masked("a mask and a label", number) for number in range(4)]
    for wrap in (Repeated, fl.PrefetchLoader, lambda loader: Repeated(fl.PrefetchLoader(loader, device="cpu"))):
        loader = fl.PrefetchLoader(wrap(DataLoader(samples, 4)), transform=T.RandomCrop(6), device="cpu")
        assert_masks_follow(loader)


def test_a_collate_function_of_the_user_is_left_alone():
    loader = DataLoader([Mask(torch.ones(4, 4))], collate_fn=list)
    assert fl.PrefetchLoader(loader, device="cpu").loader.collate_fn is list
