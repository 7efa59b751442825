"""Files with boxes, masks and keypoints: workers read, and what describes the pixels follows them."""

import io
from dataclasses import dataclass, is_dataclass
from itertools import product
from typing import NamedTuple

import PIL.Image
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import (
    CocoDetection,
    OxfordIIITPet,
    VisionDataset,
    VOCDetection,
    wrap_dataset_for_transforms_v2,
)
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


@dataclass
class Annotated:
    image: object
    target: object


class Objects(NamedTuple):
    boxes: object
    labels: object


@dataclass
class Annotation:
    boxes: object
    labels: object


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
# Of the other containers that a sample or target may be:
CONTAINERS = {
    "a data class": lambda image, number: Annotated(image, {"boxes": boxes(number), "id": number}),
    "a tuple as target": lambda image, number: (image, (boxes(number), torch.tensor([number, 9]))),
    "a list as target": lambda image, number: (image, [boxes(number), mask(number)]),
    "a named tuple as target": lambda image, number: (image, Objects(boxes(number), torch.tensor([number, 9]))),
    "a data class as target": lambda image, number: (image, Annotation(boxes(number), torch.tensor([number, 9]))),
    "a class and a mask": lambda image, number: (image, (number, mask(number))),
}


def leaves(batch):
    """Every tensor of a batch, sample by sample: that of an image, of a target, of a field."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    batch = plain(batch)
    children = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple | list) else ()
    return [leaf for child in children for leaf in leaves(child)]


def plain(sample):
    """A sample as torchvision takes it, which does not look into data classes."""
    if is_dataclass(sample):
        return vars(sample)
    return tuple(map(plain, sample)) if type(sample) is tuple else sample


@pytest.mark.parametrize(("form", "workers"), [*product(FORMS, (0, 1)), *product(CONTAINERS, (0,))])
def test_g14_targets_of_files_follow_as_torchvisions(form, workers):
    sample = (FORMS | CONTAINERS)[form]
    samples = [sample(file, number) for number, file in enumerate(FILES)]
    flips = [T.DecodeJpeg(), T.Resize((24, 36)), T.RandomHorizontalFlip(1.0)]
    loader = DataLoader(samples, BATCH, collate_fn=fl.collate, num_workers=workers)
    batches = list(fl.PrefetchLoader(loader, transform=T.Compose(flips), device="cpu"))

    theirs = v2.Compose([v2.Resize((24, 36)), v2.RandomHorizontalFlip(1.0)])
    for first, batch in zip(range(0, len(FILES), BATCH), batches, strict=True):
        numbers = range(first, first + BATCH)
        samples = [sample(Image(by_pillow_tensor(FILES[number])), number) for number in numbers]
        expected = [theirs(plain(each)) for each in samples]
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


def opened(number):
    """As ``PIL.Image.open``: torchvision reads the size for its boxes, and pixels are not decoded."""
    return PIL.Image.open(io.BytesIO(FILES[number]))


class Coco(CocoDetection):
    """Two objects in each image, but for one image that has none."""

    def __init__(self, load):
        VisionDataset.__init__(self, "")
        self.ids, self._load_image = list(range(len(FILES))), load

    def _load_target(self, number):
        return [{"bbox": [1.0, 2, 30, 20 + each], "category_id": each} for each in (3, 5) if number != 1]


class Voc(VOCDetection):
    def __init__(self, load):
        VisionDataset.__init__(self, "")
        self.load = load

    def __getitem__(self, number):
        cat = {"name": "cat", "bndbox": {"xmin": "1", "ymin": "2", "xmax": "30", "ymax": str(20 + number)}}
        return self.load(number), {"annotation": {"object": [cat]}}

    def __len__(self):
        return len(FILES)


class Pets(OxfordIIITPet):
    def __init__(self, load):
        VisionDataset.__init__(self, "")
        self.load, self._target_types = load, ("category", "segmentation")

    def __getitem__(self, number):
        return self.load(number), (number, PIL.Image.fromarray(mask(number)[0].numpy()))

    def __len__(self):
        return len(FILES)


@pytest.mark.parametrize("data", [Coco, Voc, Pets], ids=["COCO", "VOC", "pets"])
def test_g14_targets_that_torchvision_wraps_follow(data):
    dataset = wrap_dataset_for_transforms_v2(data(opened))
    transform = T.Compose([T.DecodeJpeg(), T.RandomHorizontalFlip(1.0)])
    loader = DataLoader(dataset, BATCH, collate_fn=fl.collate)
    batches = list(fl.PrefetchLoader(loader, transform=transform, device="cpu"))
    theirs = v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(1.0)])
    expected = [
        theirs(*sample) for sample in wrap_dataset_for_transforms_v2(data(lambda number: opened(number).convert("RGB")))
    ]
    targets = [target for _, targets in batches for target in targets]
    assert len(targets) == len(expected)
    for ours, (_, torchvisions) in zip(targets, expected, strict=True):
        torch.testing.assert_close(ours, torchvisions, rtol=4 * EPS, atol=0)
        assert [type(leaf) for leaf in leaves(ours)] == [type(leaf) for leaf in leaves(torchvisions)]
    assert [len(images) for images, _ in batches] == [BATCH] * 3


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
