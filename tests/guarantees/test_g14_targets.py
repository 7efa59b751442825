"""G14: what describes pixels follows them, or is refused with the line to write; nothing that does not is touched."""

import pytest
import torch
from torchvision.tv_tensors import BoundingBoxes, Mask

import fastload as fl
from fastload import transforms as T

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


def test_g14_a_flip_removes_no_box():
    boxes = BoundingBoxes([[1, 1, 1.5, 8], [2, 2, 2, 2]], format="XYXY", canvas_size=(SIDE, SIDE))
    _, (kept,) = loaded(([images()[0]], [{"boxes": boxes}]), T.RandomHorizontalFlip(1.0))
    assert len(kept["boxes"]) == 2
