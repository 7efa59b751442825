"""Files with boxes, masks and keypoints: workers read, and what describes the pixels follows them."""

import io
from dataclasses import dataclass, is_dataclass
from functools import partial
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
from torchvision.tv_tensors import BoundingBoxes, Image, KeyPoints, Mask, Video

import fastload as fl
from fastload import transforms as T
from tests.files import by_pillow, jpeg, saved

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


@pytest.mark.parametrize("depth", [0, 1])
def test_g14_targets_within_other_fields_follow(depth):
    target = {"mask": mask(0)}  # of one size, so that they could be stacked
    for _ in range(depth):
        target = {"target": target}
    loader = DataLoader([{"image": FILES[0], "more": target}] * BATCH, BATCH, collate_fn=fl.collate)
    (batch,) = fl.PrefetchLoader(
        loader, transform=T.Compose([T.DecodeJpeg(), T.RandomHorizontalFlip(1.0)]), device="cpu"
    )
    moved = [leaf for leaf in leaves(batch["more"]) if isinstance(leaf, Mask)]
    assert [each.tolist() for each in moved] == [v2.functional.horizontal_flip(mask(0)).tolist()] * BATCH


def test_g14_files_of_different_sizes_stay_a_list_beside_their_targets():
    samples = [(file, {"boxes": boxes(number)}) for number, file in enumerate(FILES)]
    transform = T.Compose([T.DecodeJpeg(), T.RandomHorizontalFlip(1.0)])
    (images, targets), *_ = fl.PrefetchLoader(
        DataLoader(samples, BATCH, collate_fn=fl.collate), transform=transform, device="cpu"
    )
    assert [tuple(image.shape) for image in images] == [(3, *size) for size in SIZES[:BATCH]]
    mirrored = [v2.functional.horizontal_flip(boxes(number)) for number in range(BATCH)]
    assert [target["boxes"].tolist() for target in targets] == [each.tolist() for each in mirrored]


@pytest.mark.parametrize("second", [0, 1])
def test_g14_targets_belong_to_the_first_of_two_images_of_a_sample_whatever_their_sizes(second):
    samples = [{"left": FILES[n], "right": FILES[second * n], "boxes": boxes(n)} for n in range(BATCH)]
    transform = T.Compose([T.DecodeJpeg(), T.RandomHorizontalFlip(1.0)])
    (batch,) = fl.PrefetchLoader(DataLoader(samples, BATCH, collate_fn=fl.collate), transform=transform, device="cpu")
    mirrored = [v2.functional.horizontal_flip(boxes(number)) for number in range(BATCH)]
    assert [each.tolist() for each in batch["boxes"]] == [each.tolist() for each in mirrored]
    assert [len(images) for images in (batch["left"], batch["right"])] == [BATCH, BATCH]


@pytest.mark.parametrize(
    "collate",
    [tuple, lambda samples: dict(zip("ab", samples, strict=True)), lambda samples: tuple(zip(*samples, strict=True))],
    ids=["a tuple of samples", "a dict of samples", "tuples of views"],
)
def test_targets_are_refused_where_single_images_may_be_of_one_sample_or_of_several(collate):
    one, several = Image(torch.zeros(3, *SIZES[0])), [Image(torch.zeros(3, *SIZES[0]))] * 2
    is_of_views = not isinstance(collate([(0,), (0,)]), dict) and collate([(0, 1), (0, 1)]) == ((0, 0), (1, 1))
    samples = [(several if is_of_views else one, boxes(0)) for _ in range(2)]
    loader = fl.PrefetchLoader([collate(samples)], transform=T.RandomHorizontalFlip(1.0), device="cpu")
    with pytest.raises(TypeError, match="cannot be told which boxes"):
        next(iter(loader))


def test_targets_of_a_list_of_grey_and_of_rgb_images_are_refused():
    images = [torch.zeros(3, *SIZES[0]), torch.zeros(1, *SIZES[1])]
    batches = [(images, [{"boxes": boxes(0)}, {"boxes": boxes(1)}])]
    with pytest.raises(TypeError, match=r"got 1 channels of torch.float32 and 3 channels of .*: let the data set conv"):
        next(iter(fl.PrefetchLoader(batches, transform=T.RandomHorizontalFlip(1.0), device="cpu")))
    normalized = fl.PrefetchLoader(batches, [0.5], [0.5], device="cpu")
    assert [each["boxes"].tolist() for each in next(iter(normalized))[1]] == [boxes(0).tolist(), boxes(1).tolist()]


def test_boxes_follow_videos_that_are_one_tensor_and_are_refused_beside_a_list_of_them():
    clips, flip = [Video(torch.zeros(4, 3, *SIZES[0]))] * 2, T.RandomHorizontalFlip(1.0)
    targets = [{"boxes": boxes(0)}, {"boxes": boxes(0)}]
    stacked, mirrored = Video(torch.stack(clips)), v2.functional.horizontal_flip(boxes(0))
    for videos in (stacked, [stacked, stacked]):  # one view, and two
        _, moved = next(iter(fl.PrefetchLoader([(videos, targets)], transform=flip, device="cpu")))
        assert [each["boxes"].tolist() for each in moved] == [mirrored.tolist()] * 2
    with pytest.raises(TypeError, match=r"got batch\[0\]\[0\], batch\[0\]\[1\]: let collate_fn stack them"):
        next(iter(fl.PrefetchLoader([(clips, targets)], transform=flip, device="cpu")))


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


# Files that EXIF turns: a bright square in the upper left corner, as it is stored

SQUARE, SIDE = (48, 64), 16
SQUARES = torch.zeros(SQUARE, dtype=torch.uint8)
SQUARES[:SIDE, :SIDE] = 1
SEEN = {1: lambda x: x, 2: lambda x: x.flip(-1), 3: lambda x: x.flip(-1, -2), 6: lambda x: x.mT.flip(-1)}


def square(orientation, kind="JPEG"):
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    values = SQUARES.numpy() if kind == "PNG" else 255 * SQUARES.numpy()
    return saved(PIL.Image.fromarray(values), kind, exif=exif)


def handed_out(sample, transform=None, workers=0, **options):
    """The image and the targets of a sample."""
    loader = DataLoader([sample], collate_fn=partial(fl.collate, **options), num_workers=workers)
    transform = T.Compose([T.DecodeJpeg(), *([transform] if transform else [])])
    (((image,), (target,)),) = fl.PrefetchLoader(loader, transform=transform, device="cpu")
    return image, target


def around(square):
    """The box around a square, of the canvas on which it is."""
    rows, columns = (square.amax(axis).nonzero().flatten() for axis in (1, 0))
    box = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    return BoundingBoxes([list(map(int, box))], format="XYXY", canvas_size=tuple(square.shape))


TARGETS = {
    "boxes": lambda square: {"boxes": around(square)},
    "a mask": Mask,
    "keypoints": lambda square: KeyPoints(around(square).view(2, 2), canvas_size=tuple(square.shape)),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", TARGETS)
def test_g14_a_file_that_exif_turns_is_refused_beside_targets_until_it_is_said_what_they_describe(kind, workers):
    target = TARGETS[kind](SQUARES)
    with pytest.raises(
        ValueError,
        match=r"(?s)sample 0 is turned by EXIF \(orientation 6\), and batch\[1\].*upright=False.*upright=True",
    ):
        handed_out((square(6), target), workers=workers)
    handed_out((square(1), target), workers=workers)


@pytest.mark.parametrize("transform", [None, T.RandomHorizontalFlip(1.0)])
@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("orientation", SEEN)
def test_g14_targets_lie_on_their_pixels_whether_these_are_turned_by_exif_or_not(orientation, upright, transform):
    described = SEEN[orientation](SQUARES) if upright else SQUARES
    image, mask = handed_out((square(orientation), Mask(described)), transform, upright=upright)
    assert torch.equal(image[0] > 127, mask.bool())
    image, target = handed_out((square(orientation), {"boxes": around(described)}), transform, upright=upright)
    assert target["boxes"].tolist() == around((image[0] > 127).byte()).tolist()
    assert target["boxes"].canvas_size == image.shape[-2:]


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("orientation", SEEN)
def test_g14_masks_in_files_are_turned_as_their_images_are(orientation, upright):
    pair = square(orientation), square(orientation, "PNG")
    image, mask = handed_out(pair, images=0, masks=1, upright=upright)
    assert torch.equal(image[0] > 127, mask.bool())


def test_g14_a_mask_that_exif_turns_is_refused_until_it_is_said_whether_it_should():
    with pytest.raises(
        ValueError, match=r"the mask sample 0 is turned by EXIF \(orientation 3\): pass .*upright=False"
    ):
        handed_out((square(1), square(3, "PNG")), images=0, masks=1)


def test_g14_targets_of_an_image_before_exif_turned_it_are_told_what_to_do():
    with pytest.raises(ValueError, match=r"\(48, 64\), and its image is \(64, 48\).* fl.collate\(upright=False\)"):
        handed_out((square(6), Mask(SQUARES)), T.RandomHorizontalFlip(1.0), upright=True)
