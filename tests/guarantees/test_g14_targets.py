"""G14: what describes pixels follows them, or is refused with the line to write; nothing that does not is touched."""

import warnings

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import BoundingBoxes, Image, Mask

import fastload as fl
from fastload import transforms as T
from fastload.structure.tree import tensors

SIDE = 40
BOXES = BoundingBoxes([[0, 0, 8, 8], [10, 10, 30, 30]], format="XYXY", canvas_size=(SIDE, SIDE))


def images(count=2):
    return torch.arange(SIDE * SIDE).view(SIDE, SIDE).expand(count, 3, SIDE, SIDE).to(torch.uint8)


def loaded(batch, *transforms):
    """A batch as a loader hands it out."""
    return next(iter(fl.PrefetchLoader([batch], transform=T.Compose(transforms), device="cpu")))


# MixUp and CutMix


def test_g14_labels_are_mixed_wherever_they_are_and_nothing_else_is():
    batch = {"image": images(), "index": torch.tensor([700, 701]), "label": torch.tensor([3, 4])}
    mixed = loaded(batch, T.MixUp(num_classes=5))
    assert mixed["index"].tolist() == [700, 701]
    assert mixed["label"].shape == (2, 5)
    assert mixed["label"].sum(1).tolist() == pytest.approx([1, 1])

    columns = images(), torch.tensor([700, 701]), torch.tensor([3, 4])
    _, index, label = loaded(columns, T.CutMix(num_classes=5, labels_getter=lambda batch: batch[2]))
    assert index.tolist() == [700, 701]
    assert label.shape == (2, 5)
    assert loaded(columns, T.CutMix(labels_getter=None))[2].tolist() == [3, 4]


@pytest.mark.parametrize("labels", [[3, 5], [-1, 3]])
def test_g14_labels_out_of_range_are_an_error_that_names_them(labels):
    with pytest.raises(ValueError, match=rf"from 0 to 4.*got labels from {labels[0]} to {labels[1]}"):
        loaded((images(), torch.tensor(labels)), T.MixUp(num_classes=5))


@pytest.mark.parametrize("target", [Mask(torch.zeros(2, SIDE, SIDE)), BOXES])
def test_g14_boxes_and_masks_beside_mixed_images_are_refused(target):
    with pytest.raises(TypeError, match=rf"batch\[2\] is {type(target).__name__}, which would not be mixed: leave out"):
        loaded((images(), torch.tensor([3, 4]), target), T.CutMix(num_classes=5))


# Boxes that are cropped away


def test_g14_rows_go_with_their_boxes_from_fields_that_are_per_box_and_from_no_other():
    target = {"boxes": BOXES, "labels": torch.tensor([1, 2]), "hw": torch.tensor([SIDE, SIDE]), "index": torch.ones(1)}
    with pytest.warns(UserWarning, match="the field 'hw' has as many rows as there were boxes"):
        _, (kept,) = loaded(([images()[0]], [target]), T.CenterCrop(20))
    assert {name: len(field) for name, field in kept.items()} == {"boxes": 1, "labels": 1, "hw": 2, "index": 1}

    loader = fl.PrefetchLoader(
        [([images()[0]], [target])], transform=T.Compose([T.CenterCrop(20)], per_box=["hw"]), device="cpu"
    )
    _, (kept,) = next(iter(loader))
    assert {name: len(field) for name, field in kept.items()} == {"boxes": 1, "labels": 2, "hw": 1, "index": 1}


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
@pytest.mark.parametrize("name", ["labels", "track"])
def test_g14_rows_of_lists_tuples_arrays_and_tensors_go_with_their_boxes(kind, name):
    target = {"boxes": BOXES, name: kind([1, 2])}
    transform = T.Compose([T.CenterCrop(20)], per_box=[name] if name == "track" else None)
    ((_, (kept,)),) = fl.PrefetchLoader([([images()[0]], [target])], transform=transform, device="cpu")
    assert type(kept[name]) is type(target[name])
    assert list(kept[name]) == [2]
    assert list(target[name]) == [1, 2]


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_g14_rows_of_other_fields_are_kept_and_named(kind):
    target = {"boxes": BOXES, "hw": kind([SIDE, SIDE])}
    with pytest.warns(UserWarning, match="the field 'hw' has as many rows as there were boxes"):
        _, (kept,) = loaded(([images()[0]], [target]), T.CenterCrop(20))
    assert kept["hw"] is target["hw"]


@pytest.mark.parametrize("wrong", ["label", 1, "box"])
def test_g14_a_name_of_per_box_that_no_boxes_have_beside_them_is_told_of(wrong):
    batch = [images()[0]] * 2, [{"boxes": BOXES, "labels": [1, 2]}, {"boxes": BOXES, "ids": [1, 2]}]
    transform = T.Compose([T.CenterCrop(20)], per_box=["labels", wrong])
    with pytest.warns(UserWarning, match=rf"per_box names {wrong!r}, and .* there are 'boxes', 'labels', 'ids'"):
        _, (kept, _) = next(iter(fl.PrefetchLoader([batch], transform=transform, device="cpu")))
    assert kept["labels"] == [2]


def test_g14_a_size_or_the_names_of_classes_beside_boxes_stay_whole():
    batch = [images()[0]], [(BOXES, (SIDE, SIDE), {"boxes": BOXES, "label_names": ("cat", "dog")})]
    with pytest.warns(UserWarning, match="has as many rows as there were boxes"):
        _, ((boxes, size, inner),) = next(iter(fl.PrefetchLoader([batch], transform=T.CenterCrop(20), device="cpu")))
    assert (len(boxes), size, len(inner["boxes"]), inner["label_names"]) == (1, (SIDE, SIDE), 1, ("cat", "dog"))


def test_g14_boxes_that_default_collate_stacked_keep_all_their_rows():
    loader = DataLoader([(images()[0], {"boxes": BOXES, "labels": torch.tensor([1, 2])})] * 2, 2)
    ((_, kept),) = fl.PrefetchLoader(loader, transform=T.CenterCrop(20), device="cpu")
    assert kept["boxes"].tolist() == [[[0, 0, 0, 0], [0, 0, 20, 20]]] * 2
    assert kept["labels"].tolist() == [[1, 2]] * 2


def test_g14_a_flip_removes_no_box():
    boxes = BoundingBoxes([[1, 1, 1.5, 8], [2, 2, 2, 2]], format="XYXY", canvas_size=(SIDE, SIDE))
    _, (kept,) = loaded(([images()[0]], [{"boxes": boxes}]), T.RandomHorizontalFlip(1.0))
    assert len(kept["boxes"]) == 2


# What is outside of a mask


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
@pytest.mark.parametrize("fill", [{Mask: 255, "others": 0}, 3])
def test_g14_a_crop_that_pads_fills_masks_as_torchvision(dtype, fill):
    mask = Mask(torch.ones(2, 6, 4).to(dtype))
    padded, moved = loaded((torch.ones(2, 3, 6, 4), mask), T.RandomCrop((10, 8), 2, fill=fill))
    outside = 255 if isinstance(fill, dict) else 3
    assert padded.unique().tolist() == sorted([0 if isinstance(fill, dict) else 3, 1])
    assert type(moved) is Mask
    assert torch.equal(moved, F.pad(mask, [2], fill=outside))


def test_g14_a_warp_fills_masks():
    grey, masks = torch.full((64, 3, 9, 9), 100, dtype=torch.uint8), Mask(torch.ones(64, 9, 9, dtype=torch.int64))
    warped, moved = loaded((grey, masks), T.TrivialAugmentWide(fill={Mask: 255, "others": 0}))
    assert moved.unique().tolist() == [1, 255]
    assert (warped[:, 0][moved == 255] == 0).all()


def test_g14_a_fill_that_a_mask_cannot_hold_is_refused():
    batch = torch.ones(2, 3, 6, 4), Mask(torch.ones(2, 6, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"fill of masks must be from 0 to 255, as batch\[1\] is torch.uint8; got -1"):
        loaded(batch, T.RandomCrop((10, 8), 2, fill={Mask: -1}))


# PyTorch's default collate function


@pytest.mark.parametrize("workers", [0, 1])
def test_g14_masks_follow_though_default_collate_stacked_them(workers):
    mask = torch.zeros(4, 4, dtype=torch.uint8)
    mask[:, 0] = 1
    loader = DataLoader([(mask.expand(3, 4, 4), Mask(mask))] * 2, 2, num_workers=workers)
    ((mirrored, followed),) = fl.PrefetchLoader(loader, transform=T.RandomHorizontalFlip(1.0), device="cpu")
    assert type(followed) is Mask
    assert torch.equal(followed, mirrored[:, 0])
    assert torch.equal(followed[0], mask.flip(-1))


# Views of a pair


def test_g14_each_view_of_a_sample_has_draws_of_its_own_and_targets_follow_the_first():
    flip, boxes = T.RandomHorizontalFlip(), BoundingBoxes([[0, 0, 1, 1]] * 64, format="XYXY", canvas_size=(1, 4))
    rows = torch.arange(4).expand(64, 3, 1, 4).to(torch.uint8)
    first, second, moved = loaded((Image(rows), Image(rows), boxes), flip)
    mirrored, mirrored_too = first[:, 0, 0, 0] == 3, second[:, 0, 0, 0] == 3
    assert 0 < (mirrored == mirrored_too).sum() < 64
    assert torch.equal(moved[:, 0] == 3, mirrored)
    assert torch.equal(flip(rows, T.Key().for_draw(0)), first)


@pytest.mark.parametrize(
    "form",
    [
        lambda pairs: tuple(map(list, zip(*pairs, strict=True))),  # a list of each view
        lambda pairs: [{"one": one, "other": other} for one, other in pairs],
    ],
)
def test_g14_views_in_lists_are_those_of_batches(form):
    flip, rows = T.RandomHorizontalFlip(), torch.arange(4).expand(9, 3, 1, 4).to(torch.uint8)
    batched = loaded((Image(rows), Image(rows)), flip)
    pairs = form([(Image(row), Image(row)) for row in rows])
    found, expected = tensors(loaded(pairs, flip)), tensors(form(list(zip(*batched, strict=True))))
    assert found.keys() == expected.keys()
    assert all(torch.equal(image, expected[path]) for path, image in found.items())


def test_g14_images_of_a_list_that_do_not_agree_draw_as_those_that_do():
    flip, rows = T.RandomHorizontalFlip(), torch.arange(4).expand(9, 3, 1, 4).to(torch.uint8)
    mixed = [row.float() if number % 2 else row for number, row in enumerate(rows)]
    (flipped,) = loaded((mixed,), flip)
    assert torch.equal(torch.stack([image.byte() for image in flipped]), loaded(rows, flip))


def test_g14_views_are_mixed_with_the_weight_of_their_labels():
    pair = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 3, 8, 8)
    for mix in (T.MixUp, T.CutMix):
        batch = {"one": Image(pair), "other": Image(pair), "label": torch.tensor([0, 1])}
        first, second, labels = loaded(batch, mix(num_classes=2)).values()
        for view in (first, second):
            torch.testing.assert_close(view.mean((1, 2, 3)), labels[:, 1])


def test_g14_a_plain_tensor_that_looks_like_the_images_is_named():
    with pytest.warns(
        UserWarning, match=r"batch\[1\] looks like the images at batch\[0\].*mark both as tv_tensors.Image"
    ):
        _, second, _ = loaded((images(), images(), torch.tensor([1, 2])), T.RandomHorizontalFlip(1.0))
    assert torch.equal(second, images())


# Transforms of other packages


def target():
    return BoundingBoxes([[0.0, 0, 1, 4]], format="XYXY", canvas_size=(4, 4))


@pytest.mark.parametrize(
    "foreign",
    [
        v2.RandomHorizontalFlip(1.0),
        v2.Compose([v2.Identity(), v2.Resize((2, 2))]),
        v2.RandAugment(),
        lambda image: image.flip(-1),
        torch.nn.Sequential(v2.ColorJitter(), torch.nn.ReflectionPad2d(1)),
    ],
)
def test_g14_what_may_move_pixels_beside_targets_is_refused(foreign):
    with pytest.raises(
        TypeError, match=r"(?s)may move pixels, and batch\[1\], Mask, would not.*or write T.Photometric"
    ):
        loaded((torch.zeros(2, 3, 4, 4), Mask(torch.zeros(2, 4, 4))), T.RandomHorizontalFlip(), foreign)
    loaded((torch.zeros(2, 3, 4, 4), torch.zeros(2)), foreign)


@pytest.mark.parametrize(
    "foreign",
    [
        v2.Normalize([0.5], [0.5]),
        v2.Compose([v2.ColorJitter(0.1), v2.GaussianBlur(3)]),
        v2.RandomApply([v2.RandomInvert()]),
        torchvision.transforms.Normalize([0.5], [0.5]),
        T.Photometric(lambda images: images + 1),
    ],
)
def test_g14_photometric_transforms_go_on_to_work_beside_targets(foreign):
    _, (kept,) = loaded(([torch.rand(3, 4, 4)], [{"boxes": target()}]), foreign, T.RandomHorizontalFlip(1.0))
    assert kept["boxes"].tolist() == [[3, 0, 4, 4]]


def test_g14_a_transform_that_draws_once_for_a_batch_is_named_once():
    compose = T.Compose([v2.RandomApply([v2.RandomResizedCrop(2)]), v2.RandomInvert(1.0)])
    loader = fl.PrefetchLoader([torch.rand(2, 3, 4, 4)] * 3, transform=compose, device="cpu")
    with pytest.warns(UserWarning, match="RandomResizedCrop draws once for a whole batch") as said:
        assert len(list(loader)) == 3
    assert len(said) == 1


def test_g14_a_quality_of_jpeg_is_drawn_for_a_whole_batch_if_it_is_a_range():
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    with pytest.warns(UserWarning, match="JPEG draws once for a whole batch"):
        T.Compose([v2.JPEG((10, 90))])(images)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        T.Compose([v2.JPEG(50), v2.GaussianNoise()])(images)


@pytest.mark.parametrize("quality", [90, None, [], (1, 2)])
def test_g14_a_function_of_the_users_may_have_a_quality(quality):
    class Noise:
        def __init__(self):
            self.quality = quality

        def __call__(self, images):
            return images

    assert T.Compose([Noise(), T.Photometric(Noise())])(torch.zeros(2, 3, 4, 4)).shape == (2, 3, 4, 4)
