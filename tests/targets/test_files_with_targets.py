"""Files with boxes, masks and keypoints: workers read, and what describes the pixels follows them."""

from typing import NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.transforms import v2
from torchvision.tv_tensors import BoundingBoxes, Image, KeyPoints, Mask

import fastload as fl
from fastload import transforms as T
from tests.files import by_pillow, jpeg

SIZES = [(48 + 3 * number, 72 - number) for number in range(6)]
FILES = [jpeg(*size, seed=number) for number, size in enumerate(SIZES)]
BATCH = 2
EPS = torch.finfo(torch.float32).eps


class Sample(NamedTuple):
    image: object
    target: object


def boxes(number):
    return BoundingBoxes([[10.0, 12, 50, 40], [0, 0, 9, 9 + number]], format="XYXY", canvas_size=SIZES[number])


def mask(number):
    height, width = SIZES[number]
    return Mask((torch.arange(height)[:, None] > torch.arange(width))[None].byte())


def points(number):
    return KeyPoints([[[10.0, 12], [20, 2 * number]]], canvas_size=SIZES[number])


FORMS = {
    "boxes in a dictionary": lambda image, number: (
        image,
        {"boxes": boxes(number), "labels": torch.tensor([number, 9])},
    ),
    "all in a dictionary": lambda image, number: (
        image,
        {"boxes": boxes(number), "mask": mask(number), "points": points(number), "image_id": number},
    ),
    "boxes": lambda image, number: (image, boxes(number)),
    "a mask": lambda image, number: (image, mask(number)),
    "keypoints": lambda image, number: (image, points(number)),
    "one dictionary": lambda image, number: {"image": image, "boxes": boxes(number), "labels": torch.tensor([1, 2])},
    "a named tuple": lambda image, number: Sample(image, {"boxes": boxes(number)}),
    "a list": lambda image, number: [image, boxes(number), number],
    "the target first": lambda image, number: ({"boxes": boxes(number)}, image),
    "another tensor first": lambda image, number: (torch.tensor([1.0, number]), image, {"boxes": boxes(number)}),
}


def leaves(batch):
    """Every tensor of a batch, sample by sample: that of an image, of a target, of a field."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    children = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple | list) else ()
    return [leaf for child in children for leaf in leaves(child)]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("form", FORMS)
def test_g14_targets_of_files_follow_as_torchvisions(form, workers):
    samples = [FORMS[form](file, number) for number, file in enumerate(FILES)]
    flips = [T.DecodeJpeg(), T.Resize((24, 36)), T.RandomHorizontalFlip(1.0)]
    loader = DataLoader(samples, BATCH, collate_fn=fl.collate, num_workers=workers)
    batches = list(fl.PrefetchLoader(loader, transform=T.Compose(flips), device="cpu"))

    theirs = v2.Compose([v2.Resize((24, 36)), v2.RandomHorizontalFlip(1.0)])
    for first, batch in zip(range(0, len(FILES), BATCH), batches, strict=True):
        numbers = range(first, first + BATCH)
        expected = [theirs(FORMS[form](Image(by_pillow_tensor(FILES[number])), number)) for number in numbers]
        found = {
            kind: [each for each in leaves(batch) if type(each) is kind] for kind in (BoundingBoxes, Mask, KeyPoints)
        }
        for kind, targets in found.items():
            theirs_of_kind = [each for each in leaves(expected) if type(each) is kind]
            assert len(targets) == len(theirs_of_kind)
            for ours, torchvisions in zip(targets, theirs_of_kind, strict=True):
                torch.testing.assert_close(ours, torchvisions, rtol=4 * EPS, atol=0)  # float32, in other steps
        images = next(each for each in leaves(batch) if each.ndim == 4 and type(each) is torch.Tensor)
        assert images.shape == (BATCH, 3, 24, 36)


def by_pillow_tensor(data):
    return torch.from_numpy(by_pillow(data)).permute(2, 0, 1)


def test_g14_files_of_different_sizes_stay_a_list_beside_their_targets():
    samples = [(file, {"boxes": boxes(number)}) for number, file in enumerate(FILES)]
    transform = T.Compose([T.DecodeJpeg(), T.RandomHorizontalFlip(1.0)])
    (images, targets), *_ = fl.PrefetchLoader(
        DataLoader(samples, BATCH, collate_fn=fl.collate), transform=transform, device="cpu"
    )
    assert [tuple(image.shape) for image in images] == [(3, *size) for size in SIZES[:BATCH]]
    mirrored = [v2.functional.horizontal_flip(boxes(number)) for number in range(BATCH)]
    assert [target["boxes"].tolist() for target in targets] == [each.tolist() for each in mirrored]


def test_g14_the_targets_of_a_skipped_file_are_skipped():
    files = [FILES[0], FILES[1][:300], *FILES[2:]]
    samples = [(file, {"boxes": boxes(number)}) for number, file in enumerate(files)]
    transform = T.Compose([T.DecodeJpeg(on_error="skip"), T.Resize((24, 36)), T.RandomHorizontalFlip(1.0)])
    loader = fl.PrefetchLoader(DataLoader(samples, 6, collate_fn=fl.collate), transform=transform, device="cpu")
    with pytest.warns(UserWarning, match="left out"):
        ((images, targets),) = loader
    assert len(images) == len(targets) == 5
    theirs = v2.Compose([v2.Resize((24, 36)), v2.RandomHorizontalFlip(1.0)])
    for target, number in zip(targets, (0, 2, 3, 4, 5), strict=True):
        torch.testing.assert_close(target["boxes"], theirs(boxes(number)), rtol=4 * EPS, atol=0)
