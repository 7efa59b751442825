"""One line around an ordinary loader: the same samples in the same order, and pixels as near as two decoders are."""

import copy
import gc
import io
import random
import warnings
import weakref
from collections import OrderedDict, defaultdict
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder, VOCDetection, wrap_dataset_for_transforms_v2
from torchvision.transforms import v2

import fastload as fl
from fastload import transforms as T
from fastload.offload.bad_image import BadImage

pytestmark = pytest.mark.long  # each test plays whole epochs, twice

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
# Two decoders and a resize without rounding in between: at most two levels of 255, in units of the normalised values.
NEAR = 2 / 255 / min(STD)


def evaluation():
    return v2.Compose(
        [
            v2.Resize(40),
            v2.CenterCrop(32),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Twenty photographs: JPEGs, a few of them grey, rotated by EXIF, progressive, or PNGs."""
    root = tmp_path_factory.mktemp("photographs") / "all"
    fl.data.sample_data(root, images=20)
    files = sorted(root.glob("*/*/*.jpg"))
    rotation = Image.Exif()
    rotation[0x0112] = 6
    image = Image.open(files[1]).convert("RGB")
    image.convert("L").save(files[2])
    image.save(files[3], exif=rotation)
    image.save(files[5], progressive=True)
    image.save(files[7].with_suffix(".png"))
    files[7].unlink()
    return root


@pytest.fixture
def folder(photographs):
    return ImageFolder(photographs / "train", transform=evaluation())


def loader_of(dataset, workers=0, **options):
    generator = torch.Generator().manual_seed(5)
    return DataLoader(dataset, 4, shuffle=True, num_workers=workers, generator=generator, **options)


def batches(loader):
    return [batch if isinstance(batch, dict) else list(batch) for batch in loader]


def assert_near(ours, theirs):
    assert len(ours) == len(theirs)
    assert torch.allclose(torch.stack(list(ours)), torch.stack(list(theirs)), rtol=0, atol=NEAR)


class Pairs(Dataset):
    """As users write theirs: an image and a label, with a transform of the image."""

    def __init__(self, files, transform):
        self.files, self.transform = files, transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        return {"image": self.transform(image), "name": self.files[index].name, "number": index}


@pytest.fixture
def pairs(photographs):
    return Pairs(sorted(photographs.glob("*/*/*.jpg")), evaluation())


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_order_and_labels_are_the_loaders_own(folder, workers):
    ours, theirs = batches(fl.offload(loader_of(folder, workers), device="cpu")), batches(loader_of(folder, workers))
    assert len(ours) == len(theirs)
    for (our_images, our_labels), (images, labels) in zip(ours, theirs, strict=True):
        assert our_labels.tolist() == labels.tolist()
        assert our_images.dtype is images.dtype
        assert_near(our_images, images)


@pytest.mark.parametrize(
    "made_of",
    [
        lambda folder, _: Subset(folder, [7, 3, 5, 1]),
        lambda folder, root: ConcatDataset([folder, ImageFolder(root / "val", transform=folder.transform)]),
        lambda folder, _: Subset(ConcatDataset([folder, folder]), range(3, 20)),
    ],
    ids=["a subset", "two folders", "a subset of both"],
)
def test_parts_of_data_sets(folder, photographs, made_of):
    dataset = made_of(folder, photographs)
    for ours, theirs in zip(fl.offload(loader_of(dataset), device="cpu"), loader_of(dataset), strict=True):
        assert ours[1].tolist() == theirs[1].tolist()
        assert_near(ours[0], theirs[0])


def test_a_transform_that_was_set_later_is_the_one_that_moves(photographs):
    """As of validation data, whose transform is put into a copy of the training data."""
    for first in (None, v2.Compose([v2.Resize((32, 32)), v2.ToImage()])):
        folder = ImageFolder(photographs / "train", transform=first)
        folder.transform = evaluation()
        for ours, theirs in zip(fl.offload(loader_of(folder), device="cpu"), loader_of(folder), strict=True):
            assert_near(ours[0], theirs[0])


@pytest.mark.parametrize(
    "collate",
    [
        None,
        lambda samples: {
            "pixels": torch.stack([sample["image"] for sample in samples]),
            "name": [sample["name"] for sample in samples],
        },
        lambda samples: {"pixels": torch.stack([sample["image"] for sample in samples], 0)},
        lambda samples: ([sample["name"] for sample in samples], [sample["image"] for sample in samples]),
        lambda samples: tuple(zip(*((sample["image"], sample["number"]) for sample in samples), strict=True)),
    ],
    ids=["PyTorch's", "a stack", "a stack along 0", "a list", "tuples"],
)
def test_a_batch_has_the_structure_of_the_users_own_collate_function(pairs, collate):
    ours = fl.offload(loader_of(pairs, collate_fn=collate), device="cpu")
    for our_batch, batch in zip(ours, loader_of(pairs, collate_fn=collate), strict=True):
        assert type(our_batch) is type(batch)
        values = (our_batch.values(), batch.values()) if isinstance(batch, dict) else (our_batch, batch)
        for value, other in zip(*values, strict=True):
            assert type(value) is type(other)
            images = isinstance(other[0], torch.Tensor) and other[0].ndim == 3
            assert_near(value, other) if images else None
            assert images or list(value) == list(other)


def test_files_are_read_and_not_decoded_by_workers(folder):
    loader = fl.offload(loader_of(folder, collate_fn=None), device="cpu")
    files = next(iter(loader.loader))[0]
    assert "EncodedImages(4 files" in repr(files)
    assert any(name.endswith(".jpg") for name in files.names)


def test_random_transforms_draw_for_each_image_and_each_epoch(photographs):
    folder = ImageFolder(photographs / "train", v2.Compose([v2.RandomHorizontalFlip(), *evaluation().transforms]))
    loader = fl.offload(DataLoader(folder, 4), device="cpu", seed=3)
    first, second, again = (
        batches(loader),
        batches(loader),
        batches(fl.offload(DataLoader(folder, 4), device="cpu", seed=3)),
    )
    assert all(torch.equal(one[0], other[0]) for one, other in zip(first, again, strict=True))
    assert not all(torch.equal(one[0], other[0]) for one, other in zip(first, second, strict=True))


def test_what_cannot_move_is_done_in_the_workers(photographs):
    transform = v2.Compose([v2.RandomPerspective(p=0), *evaluation().transforms])
    folder = ImageFolder(photographs / "train", transform)
    for ours, theirs in zip(fl.offload(loader_of(folder), device="cpu"), loader_of(folder), strict=True):
        assert_near(ours[0], theirs[0])


def test_arguments_are_those_of_a_prefetch_loader(folder):
    loader = fl.offload(
        loader_of(folder), device="cpu", depth=3, seed=7, transform=T.CutMix(num_classes=10), verbose=False
    )
    assert (loader.depth, loader.seed) == (3, 7)
    assert next(iter(loader))[1].shape == (4, 10)


def test_the_normalised_images_may_have_another_form(folder, pairs):
    half = fl.offload(loader_of(folder), device="cpu", dtype=torch.bfloat16, memory_format=torch.channels_last)
    images = next(iter(half))[0]
    assert images.dtype is torch.bfloat16
    assert images.is_contiguous(memory_format=torch.channels_last)
    plain = Pairs(pairs.files, v2.Compose([v2.CenterCrop(32), v2.PILToTensor()]))
    given = fl.offload(loader_of(plain), MEAN, STD, device="cpu", dtype=torch.float16)
    assert next(iter(given))["image"].dtype is torch.float16
    with pytest.raises(ValueError, match="give mean and std too"):
        fl.offload(loader_of(plain), dtype=torch.float16)


def test_what_the_loader_has_is_kept(folder):
    sampler = BatchSampler(RandomSampler(folder, generator=torch.Generator().manual_seed(2)), 3, drop_last=True)
    plain = DataLoader(folder, batch_sampler=sampler, num_workers=1, prefetch_factor=5, persistent_workers=True)
    loader = fl.offload(plain, device="cpu")
    assert loader.batch_sampler is sampler
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 5, True)
    assert loader.dataset.classes == folder.classes
    assert len(loader) == len(plain)


def test_the_loader_its_data_set_and_random_numbers_are_left_alone(folder):
    before = copy.copy(vars(folder))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    plain = loader_of(folder)
    fl.offload(plain, device="cpu")
    assert vars(folder) == before
    assert plain.dataset is folder
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_it_says_what_moved(folder, capsys):
    fl.offload(loader_of(folder), device="cpu")
    said = capsys.readouterr().out
    assert "dataset.transform" in said
    assert "CenterCrop" in said
    assert "images: read and decoded in the workers" in said
    fl.offload(loader_of(folder), device="cpu", verbose=False)
    assert capsys.readouterr().out == ""


def test_images_that_are_no_files_go_as_pixels():
    class Arrays(Dataset):
        transform = evaluation()

        def __len__(self):
            return 6

        def __getitem__(self, index):
            pixels = np.random.default_rng(index).integers(0, 256, (48, 50, 3), dtype=np.uint8)
            return self.transform(Image.fromarray(pixels)), index

    for ours, theirs in zip(fl.offload(loader_of(Arrays()), device="cpu"), loader_of(Arrays()), strict=True):
        assert ours[1].tolist() == theirs[1].tolist()
        assert_near(ours[0], theirs[0])


class Sizes(Dataset):
    """Images of different sizes that no worker can leave undecoded, as those of PNG files."""

    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 6

    def __getitem__(self, index):
        pixels = np.random.default_rng(index).integers(0, 256, (48 + index, 60 - index, 3), dtype=np.uint8)
        return self.transform(Image.fromarray(pixels)), index


def test_clips_of_three_frames_are_no_colours(pairs):
    class Clips(Pairs):
        def __getitem__(self, index):
            frames = [v2.functional.pil_to_tensor(Image.open(file).convert("RGB")) for file in self.files[:3]]
            return self.transform(tv_tensors.Video(torch.stack([frame[:, :40, :40] for frame in frames]))), index

    transform = v2.Compose([v2.CenterCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    loader = fl.offload(DataLoader(Clips(pairs.files, transform), 2), device="cpu", on_error="skip")
    assert next(iter(loader))[0].shape == (2, 3, 3, 32, 32)


def test_a_batch_may_be_decoded_images_of_different_sizes_and_nothing_else():
    class Alone(Sizes):
        def __getitem__(self, index):
            return super().__getitem__(index)[0]

    for ours, theirs in zip(
        fl.offload(loader_of(Alone(evaluation())), device="cpu"), loader_of(Alone(evaluation())), strict=True
    ):
        assert ours.shape == theirs.shape
        assert_near(ours, theirs)


@pytest.mark.parametrize("workers", [0, 2])
def test_decoded_images_of_different_sizes_are_one_batch_as_collate_made_them(workers):
    loader = loader_of(Sizes(evaluation()), workers)
    for ours, theirs in zip(fl.offload(loader, device="cpu"), loader_of(Sizes(evaluation()), workers), strict=True):
        assert isinstance(ours[0], torch.Tensor)
        assert ours[0].shape == theirs[0].shape
        assert_near(ours[0], theirs[0])


def test_decoded_images_of_different_sizes_can_be_mixed_and_seen_in_several_views():
    views = T.MultiView([T.RandomHorizontalFlip()] * 2)
    loader = fl.offload(
        loader_of(Sizes(evaluation())), transform=T.Compose([T.MixUp(num_classes=6), views]), device="cpu"
    )
    for (one, other), labels in loader:
        assert one.shape == other.shape == (len(labels), 3, 32, 32)
        assert labels.sum(1).allclose(torch.ones(len(labels)))


def test_decoded_images_of_different_sizes_stay_a_list_where_nothing_gives_them_one_size():
    whole = v2.Compose([v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    images, numbers = next(iter(fl.offload(DataLoader(Sizes(whole), 4), device="cpu")))
    assert [tuple(image.shape) for image in images] == [(3, 48 + n, 60 - n) for n in numbers.tolist()]


def test_a_stack_of_grey_and_coloured_images_is_refused_as_collate_refuses_it():
    class Modes(Sizes):
        def __getitem__(self, index):
            return self.transform(Image.new("L" if index % 2 else "RGB", (40, 40 + index))), index

    with pytest.raises(TypeError, match=r"\(1, H, W\) and torch.uint8 \(3, H, W\)"):
        list(fl.offload(DataLoader(Modes(evaluation()), 4), device="cpu"))


def test_two_views_of_a_sample_are_both_transformed(pairs):
    class Views(Pairs):
        def __getitem__(self, index):
            image = Image.open(self.files[index]).convert("RGB")
            return self.transform(image), self.transform(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))

    views = Views(pairs.files, pairs.transform)
    for ours, theirs in zip(fl.offload(loader_of(views), device="cpu"), loader_of(views), strict=True):
        assert_near(ours[0], theirs[0])
        assert_near(ours[1], theirs[1])


def test_boxes_and_masks_follow_on_the_device(pairs):
    class Detection(Pairs):
        def __init__(self, files):
            super().__init__(files, None)
            self.transforms = v2.Compose(
                [v2.ToImage(), v2.RandomHorizontalFlip(p=1), v2.ToDtype(torch.float32, scale=True)]
            )
            del self.transform

        def __getitem__(self, index):
            image = Image.open(self.files[index]).convert("RGB")
            width, height = image.size
            box = tv_tensors.BoundingBoxes([[10, 20, 60, 90]], format="XYXY", canvas_size=(height, width))
            mask = torch.zeros(1, height, width, dtype=torch.uint8)
            mask[0, 20:90, 10:60] = 1
            return self.transforms(image, {"boxes": box, "masks": tv_tensors.Mask(mask), "labels": torch.tensor([3])})

    def by_sample(samples):
        return tuple(zip(*samples, strict=True))

    detection = Detection(pairs.files)
    ours = fl.offload(loader_of(detection, collate_fn=by_sample), device="cpu")
    for (our_images, our_targets), (images, targets) in zip(
        ours, loader_of(detection, collate_fn=by_sample), strict=True
    ):
        assert type(our_images) is tuple
        for our_image, image in zip(our_images, images, strict=True):
            assert torch.allclose(our_image, image, rtol=0, atol=2 / 255)
        for our_target, target in zip(our_targets, targets, strict=True):
            assert our_target.keys() == target.keys()
            assert all(torch.equal(our_target[key], target[key]) for key in target)


class Computing(Pairs):
    def __getitem__(self, index):
        return self.transform(Image.open(self.files[index]).convert("RGB")) * 2, index


class Transforming(Pairs):
    def __getitem__(self, index):
        return v2.RandomHorizontalFlip(1.0)(self.transform(Image.open(self.files[index]).convert("RGB"))), index


def mixed(batch):
    return v2.MixUp(num_classes=9)(batch["image"], batch["number"])


class Ignoring(Pairs):
    def __getitem__(self, index):
        return torch.zeros(3, 4, 4), index


class Plain(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(3, 4, 4), index


class Arrays(Pairs):
    """Yields NumPy arrays to its transform."""

    def __init__(self, pairs, dtype, *steps):
        super().__init__(pairs.files, v2.Compose(steps))
        self.dtype = dtype

    def __getitem__(self, index):
        pixels = np.asarray(Image.open(self.files[index]).convert("RGB").resize((40, 30)))
        return self.transform((pixels / 255 if self.dtype != np.uint8 else pixels).astype(self.dtype)), index


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays_are_taken_where_the_transform_begins_with_their_conversion(pairs, dtype):
    scaled = v2.ToDtype(torch.float32, scale=True)
    steps = [v2.ToImage(), scaled, v2.RandomHorizontalFlip(1.0), v2.Normalize(MEAN, STD)]
    loader = DataLoader(Arrays(pairs, dtype, *steps), 4)
    for (ours, _), (theirs, _) in zip(fl.offload(loader, device="cpu"), loader, strict=True):
        assert_near(ours, theirs)


def test_dtype_auto_is_that_of_the_device(photographs):
    loader = DataLoader(ImageFolder(photographs, evaluation()), 4)
    images, _ = next(iter(fl.offload(loader, dtype="auto", device="cpu")))
    assert images.dtype is torch.float32


class Tensors(Pairs):
    """Images as tensors, of any type."""

    def __init__(self, pairs, *steps, of=torch.Tensor):
        super().__init__(pairs.files, v2.Compose(steps))
        self.of = of

    def __getitem__(self, index):
        return self.transform(torch.zeros(3, 16, 16, dtype=torch.uint8).as_subclass(self.of)), index


class Stereo(Pairs):
    def __getitem__(self, index):
        image = tv_tensors.Image(torch.zeros(3, 16, 16, dtype=torch.uint8))
        return self.transform(image, tv_tensors.Image(image + 1))


class Named(Pairs):
    def __getitem__(self, index):
        return self.transform(img=Image.open(self.files[index]))


@dataclass(frozen=True)
class Frozen(Dataset):
    transform: object

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.transform(Image.new("RGB", (16, 16))), index


def without_its_transform(pairs):
    folder = ImageFolder(pairs.files[0].parents[1], transform=pairs.transform)
    folder.transform = None
    return folder


class Stream(torch.utils.data.IterableDataset):
    transform = evaluation()

    def __iter__(self):
        yield from range(4)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (lambda _: [1, 2], "no DataLoader"),
        (lambda _: DataLoader(Stream()), "IterableDataset"),
        (lambda p: fl.PrefetchLoader(DataLoader(p), device="cpu"), "pass the DataLoader that it wraps"),
        (lambda _: DataLoader(Plain()), "no attribute transform"),
        (lambda p: DataLoader(Pairs(p.files, None)), "the transform of dataset, of type Pairs, is None"),
        (lambda p: DataLoader(p, batch_size=None), "batch_size is None"),
        (lambda p: DataLoader(Computing(p.files, p.transform)), r"dataset\[0\] fails"),
        (lambda p: DataLoader(Ignoring(p.files, p.transform)), "does not return what its transform"),
        (lambda p: DataLoader(Pairs(p.files, v2.Lambda(np.asarray))), "nothing of dataset.transform can move"),
        (
            lambda p: DataLoader(p, 2, collate_fn=lambda b: torch.stack([s["image"] for s in b]) / 2),
            "more .* than to stack",
        ),
        (lambda p: DataLoader(p, 2, collate_fn=lambda b: [s["number"] for s in b]), "leaves out images"),
        (lambda p: DataLoader(p, 2, collate_fn=list), "in their samples"),
        (lambda p: DataLoader(Arrays(p, np.uint8, v2.RandomHorizontalFlip(), v2.ToImage())), "leaves arrays as they"),
        (lambda p: DataLoader(Arrays(p, np.float64, v2.ToImage(), v2.RandomHorizontalFlip())), "array of float64"),
        (lambda p: DataLoader(p, 2, collate_fn=lambda b: mixed(default_collate(b))), r"transform=T.MixUp\(...\)"),
        (lambda p: DataLoader(Transforming(p.files, p.transform)), "a transform of torchvision's v2"),
        (lambda p: DataLoader(ConcatDataset([p, Pairs(p.files, evaluation())])), "two objects"),
        (lambda p: DataLoader(without_its_transform(p)), "transform is None, and dataset.transforms still has one"),
        (lambda p: DataLoader(Tensors(p, v2.CenterCrop(8), v2.ToTensor())), "is given a tensor"),
        (lambda p: DataLoader(Tensors(p, UNIT, of=tv_tensors.Mask)), "is given a Mask alone.* in one call"),
        (lambda p: DataLoader(Stereo(p.files, v2.Compose([v2.RandomHorizontalFlip()]))), "is given a second image"),
        (lambda p: DataLoader(Named(p.files, v1.Compose([v1.ToTensor()]))), "by keyword, without image: with img"),
        (lambda p: DataLoader(Frozen(p.transform)), "cannot have another transform: cannot assign"),
    ],
)
def test_what_it_does_not_know_is_refused_with_the_lines_to_write(pairs, refused, reason):
    with pytest.raises(TypeError, match=reason) as raised:
        fl.offload(refused(pairs))
    assert "T.DecodeJpeg()" in str(raised.value)


def test_an_image_beside_those_of_the_transform_is_left_as_it_is(pairs):
    class Before(Stereo):
        def __getitem__(self, index):
            image = tv_tensors.Image(torch.full((3, 16, 16), index, dtype=torch.uint8))
            return *self.transform(image, tv_tensors.Mask(torch.zeros(16, 16, dtype=torch.uint8))), image

    loader = DataLoader(Before(pairs.files, v2.Compose([v2.RandomHorizontalFlip(1.0)])), 4)
    for ours, theirs in zip(fl.offload(loader, device="cpu"), loader, strict=True):
        assert all(map(torch.equal, ours, theirs))


def test_a_data_set_that_calls_the_joint_transform_is_told_that_another_was_set(voc):
    dogs = VOCDetection(voc, "2007", "train", transform=evaluation())
    dogs.transform = evaluation()
    with pytest.raises(TypeError, match=r"calls dataset\.transforms, whose transform is another.*set later"):
        fl.offload(DataLoader(dogs, 2, collate_fn=fl.collate), device="cpu")


def test_float32_tensors_that_reach_a_conversion_of_pillow_images_are_as_they_were(pairs):
    class Floats(Pairs):
        def __getitem__(self, index):
            return self.transform(torch.full((3, 16, 16), index / 20)), index

    loader = DataLoader(Floats(pairs.files, v2.Compose([v2.CenterCrop(8), v2.ToTensor()])), 4)
    for ours, theirs in zip(fl.offload(loader, device="cpu"), loader, strict=True):
        assert_near(ours[0], theirs[0])


def test_a_loader_that_computes_with_batches_is_refused(pairs):
    class Scaled(DataLoader):
        def __iter__(self):
            yield from (batch["image"] * 2 - 1 for batch in super().__iter__())

    with pytest.raises(TypeError, match="a Scaled has an iterator of its own"):
        fl.offload(Scaled(pairs))


def test_a_misspelt_policy_is_refused_for_decoded_images_too(pairs):
    with pytest.raises(ValueError, match="on_error must be one of 'raise', 'skip', 'zero'; got 'ignore'"):
        fl.offload(DataLoader(Arrays(pairs, np.uint8, v2.ToImage())), on_error="ignore")


@pytest.mark.parametrize("mode", ["P", "RGBA", "I;16"])
def test_images_that_pillow_resizes_in_its_own_way_are_refused(pairs, mode):
    class OfMode(Pairs):
        def __getitem__(self, index):
            return self.transform(Image.new(mode, (40, 40))), index

    with pytest.raises(TypeError, match=f"mode '{mode}'"):
        fl.offload(DataLoader(OfMode(pairs.files, evaluation())))


def test_an_empty_data_set_is_refused(pairs):
    with pytest.raises(ValueError, match="empty"):
        fl.offload(DataLoader(Pairs([], pairs.transform)))


@pytest.mark.parametrize(
    ("on_error", "says"), [("raise", pytest.raises(fl.transforms.BadImageError)), ("skip", nullcontext())]
)
def test_a_damaged_file_is_named_or_left_out(tmp_path, photographs, on_error, says):
    files = sorted(photographs.glob("val/*/*.jpg"))[:4]
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(files[0].read_bytes()[:2000])
    dataset = Pairs([*files, damaged], evaluation())
    loader = fl.offload(DataLoader(dataset, 5), device="cpu", on_error=on_error)
    with says as raised, pytest.warns(UserWarning, match="damaged") if on_error == "skip" else nullcontext():
        assert next(iter(loader))["number"].tolist() == [0, 1, 2, 3]
    assert raised is None or "damaged.jpg" in str(raised.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_files_that_xmp_turns_are_as_the_data_set_decodes_them(tmp_path, photographs, workers):
    (tmp_path / "class").mkdir()
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    for number, file in enumerate(sorted(photographs.glob("val/*/*.jpg"))[:3]):
        Image.open(file).save(tmp_path / "class" / f"{number}.jpg", xmp=xmp)
    folder = ImageFolder(tmp_path, evaluation())
    images, _ = next(iter(fl.offload(DataLoader(folder, 3, num_workers=workers), device="cpu")))
    assert_near(images, [image for image, _ in folder])


@pytest.fixture
def bad_folder(tmp_path, photographs):
    """Good photographs, and files that are bad in their own ways, the first of all among them."""
    files = [file.read_bytes() for file in sorted(photographs.glob("val/*/*.jpg"))[:3]]
    image = Image.open(io.BytesIO(files[0]))
    rotation = Image.Exif()
    rotation[0x0112] = 6
    for form, options in (("png", {}), ("jpeg", {"exif": rotation})):
        image.save(file := io.BytesIO(), form, **options)
        files.append(file.getvalue()[: len(file.getvalue()) // 2])
    names = ["good 0.jpg", "good 1.jpg", "good 2.jpg", "damaged.png", "damaged and rotated.jpg"]
    files, names = [b"", *files, b"no image at all"], ["a first without contents.jpg", *names, "no image.png"]
    (tmp_path / "class").mkdir()
    for name, contents in zip(names, files, strict=True):
        (tmp_path / "class" / name).write_bytes(contents)
    return tmp_path


@pytest.mark.parametrize("workers", [0, 2])
def test_files_that_the_data_set_cannot_open_or_decode_are_left_out(bad_folder, workers):
    folder = ImageFolder(bad_folder, evaluation())
    loader = fl.offload(DataLoader(folder, 7, num_workers=workers), device="cpu", on_error="skip")
    with pytest.warns(UserWarning, match="without contents.jpg"):
        images, _ = next(iter(loader))
    good = [folder[index][0] for index, (path, _) in enumerate(folder.samples) if "good" in path]
    assert_near(images, good)


def test_a_folder_without_a_jpeg_leaves_out_bad_files_too(tmp_path):
    (tmp_path / "class").mkdir()
    for number in range(4):
        Image.new("RGB", (40 + number, 50), (60 * number, 0, 0)).save(tmp_path / "class" / f"{number}.png")
    (tmp_path / "class" / "2.png").write_bytes(b"")
    loader = fl.offload(DataLoader(ImageFolder(tmp_path, evaluation()), 4), device="cpu", on_error="skip")
    with pytest.warns(UserWarning, match="2.png"):
        assert next(iter(loader))[0].shape == (3, 3, 32, 32)


@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_bad_files_are_let_go_of_without_the_cycle_collector(bad_folder, on_error):
    loader = DataLoader(ImageFolder(bad_folder, evaluation()), 4)
    gc.collect()
    gc.disable()
    try:
        offloaded = fl.offload(loader, device="cpu", on_error=on_error)
        with suppress(T.BadImageError), warnings.catch_warnings(action="ignore"):
            for _ in offloaded:
                pass
        side = weakref.ref(offloaded._side)
        del offloaded
        assert side() is None
        assert not [each for each in gc.get_objects() if isinstance(each, BadImage)]
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["a first without contents.jpg", "damaged.png", "no image.png"])
def test_files_that_the_data_set_cannot_open_or_decode_are_named(bad_folder, name):
    folder = ImageFolder(bad_folder, evaluation())
    folder.samples = [sample for sample in folder.samples if name in sample[0] or "good" in sample[0]]
    with pytest.raises(T.BadImageError, match=name):
        list(fl.offload(DataLoader(folder, 2), device="cpu"))


class Failing(Pairs):
    """Fails for the sample ``at`` in its own way, after it has opened the sample's file."""

    at = 4  # behind those that are read once

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        if index == self.at:
            self.at = -1  # once: another call would succeed
            raise ValueError("the label is missing")
        return {"image": self.transform(image), "number": index}


@pytest.mark.parametrize("part", [lambda whole: whole, lambda whole: Subset(whole, range(6))], ids=["whole", "subset"])
def test_other_errors_of_the_data_set_are_its_own(pairs, part):
    loader = fl.offload(DataLoader(part(Failing(pairs.files, evaluation())), 2), device="cpu", on_error="skip")
    with pytest.raises(ValueError, match="the label is missing"):
        list(loader)


class WithFallback(Pairs):
    """Reads an array where Pillow cannot read the image."""

    def __getitem__(self, index):
        try:
            image = Image.open(self.files[index]).convert("RGB")
        except OSError:
            if self.files[index].stat().st_size:
                raise
            image = Image.fromarray(np.full((40, 40, 3), 9, dtype=np.uint8))
        return {"image": self.transform(image), "number": index}


def test_a_bad_file_changes_no_other_sample_of_its_batch(tmp_path, pairs):
    (tmp_path / "fallback.jpg").write_bytes(b"")
    (tmp_path / "bad.png").write_bytes(b"no image")
    files = [*pairs.files[:3], tmp_path / "fallback.jpg", tmp_path / "bad.png"]
    whole = Subset(WithFallback(files, evaluation()), range(5))
    with pytest.warns(UserWarning, match="bad.png"):
        batch = next(iter(fl.offload(DataLoader(whole, 5), device="cpu", on_error="skip")))
    assert batch["number"].tolist() == [0, 1, 2, 3]


class Sizing(Pairs):
    def __getitem__(self, index):
        image = Image.open(self.files[index])
        return {"image": self.transform(image.convert("RGB")), "size": torch.tensor(image.size)}


def test_a_bad_image_has_no_size(tmp_path, pairs):
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    dataset = Sizing([*pairs.files[:4], tmp_path / "bad.jpg"], evaluation())
    loader = fl.offload(DataLoader(dataset, 5), device="cpu", on_error="skip")
    with pytest.raises(OSError, match="cannot identify"):
        list(loader)


@pytest.mark.parametrize("at", [0, 1], ids=["first of its batch", "second"])
@pytest.mark.parametrize(
    "collate", [None, lambda samples: ([sample["image"] for sample in samples], samples[0]["number"])]
)
def test_a_data_set_that_replaces_bad_files_is_told_to_let_them_raise(tmp_path, pairs, at, collate):
    class Replacing(Pairs):
        def __getitem__(self, index):
            try:
                image = self.transform(Image.open(self.files[index]).convert("RGB"))
            except OSError:
                image = torch.zeros(3, 32, 32)
            return {"image": image, "number": index}

    (tmp_path / "bad.png").write_bytes(b"no image")
    files = [*pairs.files[:4], *pairs.files[4 : 4 + at], tmp_path / "bad.png", *pairs.files[6:8]]
    loader = fl.offload(DataLoader(Replacing(files, evaluation()), 2, collate_fn=collate), device="cpu")
    with pytest.raises(TypeError, match=r'let it raise, and say fl\.offload\(loader, on_error="skip"\)'):
        list(loader)


def test_an_image_and_its_mask_with_one_transform_are_refused_at_once(pairs):
    class Masked(Pairs):
        def __getitem__(self, index):
            image = Image.open(self.files[index]).convert("RGB")
            return self.transform(image), self.transform(image.convert("L"))

    transform = v2.Compose([v2.CenterCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    with pytest.raises(TypeError, match=r"got torch.uint8 \(1, .*A mask is no photograph.*as a tv_tensors\.Mask"):
        fl.offload(DataLoader(Masked(pairs.files, transform), 2), device="cpu")


def test_a_mask_in_one_call_with_its_image_is_taken(pairs):
    class Masked(Pairs):
        def __getitem__(self, index):
            image = Image.open(self.files[index]).convert("RGB")
            mask = v2.functional.pil_to_tensor(image.convert("L")) // 100
            return self.transform(image, tv_tensors.Mask(mask))

    transform = v2.Compose([v2.CenterCrop(32), v2.RandomHorizontalFlip(1.0), v2.ToImage(), UNIT])
    loader = DataLoader(Masked(pairs.files, transform), 2)
    for ours, theirs in zip(fl.offload(loader, device="cpu"), loader, strict=True):
        assert_near(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_a_mask_with_a_palette_is_not_to_be_converted(pairs):
    class Palettes(Pairs):
        def __getitem__(self, index):
            image = Image.open(self.files[index]).convert("RGB")
            return self.transform(image), self.transform(image.convert("P"))

    with pytest.raises(TypeError, match=r"mode 'P'.*A mask is no photograph"):
        fl.offload(DataLoader(Palettes(pairs.files, evaluation())), device="cpu")


def test_the_images_are_found_and_cannot_be_named(folder):
    with pytest.raises(TypeError, match="got images=0: leave it out"):
        fl.offload(DataLoader(folder, 2), images=0)


@pytest.mark.parametrize("form", ["jpg", "png"])
def test_files_of_one_size_are_one_batch_without_a_crop_or_resize(tmp_path, form):
    (tmp_path / "class").mkdir()
    for number in range(4):
        Image.new("RGB", (40, 30), (60 * number, 0, 0)).save(tmp_path / "class" / f"{number}.{form}")
    transform = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    loader = DataLoader(ImageFolder(tmp_path, transform), 4)
    images, _ = next(iter(fl.offload(loader, device="cpu", on_error="skip")))
    assert_near(images, next(iter(loader))[0])


def test_a_grey_folder_with_a_bad_file_in_front_is_refused(tmp_path):
    files = [tmp_path / f"{number}.png" for number in range(4)]
    for file in files:
        Image.new("L", (40, 40)).save(file)
    files[0].write_bytes(b"")
    grey = type("Grey", (Sizing,), {"__getitem__": lambda self, n: (self.transform(Image.open(self.files[n])), n)})
    transform = v2.Compose([v2.CenterCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    with pytest.raises(TypeError, match=r"cannot open or decode .*0\.png"):
        fl.offload(DataLoader(grey(files, transform), 4), device="cpu", on_error="skip")


BOX = "<object><name>dog</name><bndbox><xmin>10</xmin><ymin>20</ymin><xmax>60</xmax><ymax>90</ymax></bndbox></object>"


@pytest.fixture
def voc(tmp_path, pairs):
    """Pascal VOC's folders, with four photographs of one and more dogs."""
    root = tmp_path / "VOCdevkit" / "VOC2007"
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for number, file in enumerate(pairs.files[-4:]):
        (root / "JPEGImages" / f"{number}.jpg").write_bytes(file.read_bytes())
        width, height = Image.open(file).size
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        (root / "Annotations" / f"{number}.xml").write_text(f"<annotation>{size}{BOX * (number + 1)}</annotation>")
    (root / "ImageSets" / "Main" / "train.txt").write_text("0\n1\n2\n3\n")
    return tmp_path


def test_the_detection_reference_of_torchvision(voc):
    transforms = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomHorizontalFlip(p=1.0),
            v2.ToDtype(torch.float32, scale=True),
            v2.ConvertBoundingBoxFormat(tv_tensors.BoundingBoxFormat.XYXY),
            v2.SanitizeBoundingBoxes(),
            v2.ToPureTensor(),
        ]
    )
    data = VOCDetection(voc, "2007", "train", transforms=transforms)
    data = wrap_dataset_for_transforms_v2(data, target_keys=["boxes", "labels"])

    def loader():
        return DataLoader(data, 2, collate_fn=lambda samples: tuple(zip(*samples, strict=True)))

    for (our_images, our_targets), (images, targets) in zip(fl.offload(loader(), device="cpu"), loader(), strict=True):
        for our_image, image in zip(our_images, images, strict=True):
            assert torch.allclose(our_image, image, rtol=0, atol=2 / 255)
        for our_target, target in zip(our_targets, targets, strict=True):
            assert all(torch.equal(our_target[key].as_subclass(torch.Tensor), target[key]) for key in target)


def test_what_pillow_loads_beside_the_image_is_refused(pairs):
    class Segmentation(Pairs):
        def __getitem__(self, index):
            image = Image.open(self.files[index]).convert("RGB")
            return self.transform(image, image.convert("L"))

    with pytest.raises(TypeError, match="wrap_dataset_for_transforms_v2"):
        fl.offload(DataLoader(Segmentation(pairs.files, v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip()]))))


def test_boxes_that_the_data_set_moves_itself_are_left_alone(pairs):
    class Detection(Pairs):
        def __getitem__(self, index):
            box = tv_tensors.BoundingBoxes([[1, 2, 9, 9]], format="XYXY", canvas_size=(32, 32))
            return self.transform(Image.open(self.files[index]).convert("RGB")), box

    for ours, theirs in zip(
        *(make(loader_of(Detection(pairs.files, evaluation()))) for make in (moved, iter)), strict=True
    ):
        assert_near(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def moved(loader):
    return iter(fl.offload(loader, device="cpu"))


def test_spawned_workers_get_all_of_it(folder):
    loader = fl.offload(DataLoader(folder, 4, num_workers=1, multiprocessing_context="spawn"), device="cpu")
    for ours, theirs in zip(loader, DataLoader(folder, 4), strict=True):
        assert_near(ours[0], theirs[0])


class Caching(Pairs):
    """Keeps what its transform returned, under two names."""

    def __init__(self, files, transform, kept):
        super().__init__(files, transform)
        self.kept = self.alias = kept

    def __getitem__(self, index):
        try:
            known = self.kept[index]
        except KeyError:
            known = None
        if known is None:
            known = self.kept[index] = self.transform(Image.open(self.files[index]).convert("RGB"))
        assert self.alias[index] is known
        return known, index


class Cached(Dataset):
    """Keeps the samples of another data set."""

    def __init__(self, dataset):
        self.dataset, self.kept = dataset, {}

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = self.dataset[index]
        return self.kept[index]


@pytest.mark.parametrize(
    "of",
    [
        lambda files: Caching(files, evaluation(), {}),
        lambda files: Caching(files, evaluation(), [None] * len(files)),
        lambda files: Subset(Caching(files, evaluation(), OrderedDict()), range(6)),
        lambda files: Cached(Caching(files, evaluation(), defaultdict(lambda: None))),
    ],
    ids=["a dict", "a list", "in a subset", "twice"],
)
def test_what_a_data_set_keeps_of_the_first_samples_is_taken_out_again(pairs, of):
    dataset = of(pairs.files)
    ours = batches(fl.offload(DataLoader(dataset, 4, num_workers=1), device="cpu"))
    for (our_images, our_numbers), (images, numbers) in zip(ours, batches(DataLoader(dataset, 4)), strict=True):
        assert our_numbers.tolist() == numbers.tolist()
        assert_near(our_images, images)


def test_a_list_that_a_sampler_shares_with_the_data_set_stays_shared(pairs):
    class Pool(Pairs):
        def __init__(self, files, transform):
            super().__init__(files, transform)
            self.pool = [0]

        def __getitem__(self, index):
            return super().__getitem__(index)["image"], self.pool[0]

    class Refilling(SequentialSampler):
        def __iter__(self):
            self.data_source.pool[0] += 1
            return super().__iter__()

    dataset = Pool(pairs.files, evaluation())
    ours = fl.offload(DataLoader(dataset, 4, sampler=Refilling(dataset)), device="cpu")
    assert [next(iter(ours))[1].unique().tolist() for _ in range(2)] == [[1], [2]]


def test_a_data_set_that_has_kept_samples_is_told_to_come_first(pairs):
    loader = DataLoader(Caching(pairs.files, evaluation(), {}), 4)
    list(loader)
    with pytest.raises(TypeError, match=r"give it to fl\.offload before it is read"):
        fl.offload(loader, device="cpu")


class Constant(Dataset):
    """The same image again and again."""

    def __init__(self, image, *steps):
        self.image, self.transform = image, v2.Compose(steps)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.transform(self.image), index


UNIT = v2.ToDtype(torch.float32, scale=True)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.int16, torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("step", [v2.CenterCrop(8), v2.Normalize(MEAN, STD)], ids=["a crop", "a normalisation"])
def test_types_that_what_moves_cannot_take_are_refused_at_once(dtype, step):
    steps = (UNIT, step) if isinstance(step, v2.Normalize) else (step, UNIT)
    dataset = Constant(torch.ones(3, 16, 16).to(dtype), v2.ToImage(), *steps)
    with pytest.raises(TypeError, match=rf"cannot take an image of {dtype} \(3, 16, 16\): .*a uint8 tensor"):
        fl.offload(DataLoader(dataset, 2), device="cpu")


def test_float64_is_refused_before_a_crop():
    dataset = Constant(torch.ones(3, 16, 16, dtype=torch.float64), v2.CenterCrop(8), v2.ToImage(), UNIT)
    with pytest.raises(TypeError, match=r"cannot take an image of torch.float64"):
        fl.offload(DataLoader(dataset, 2), device="cpu")


def test_integers_that_a_conversion_would_scale_in_another_way_are_refused():
    dataset = Constant(torch.full((3, 16, 16), 1000, dtype=torch.int32), v2.RandomHorizontalFlip(), v2.ToImage(), UNIT)
    with pytest.raises(TypeError, match=r"uint8 \(0 to 255\), bool or floating-point .* got torch.int32"):
        fl.offload(DataLoader(dataset, 2), device="cpu")


@pytest.mark.parametrize("image", [Image.new("L", (16, 16)), torch.zeros(1, 16, 16, dtype=torch.uint8)])
def test_grey_images_that_a_normalisation_would_make_three_of_are_refused_at_once(image):
    dataset = Constant(image, v2.CenterCrop(8), v2.ToImage(), UNIT, v2.Normalize(MEAN, STD))
    with pytest.raises(TypeError, match=r"torch.uint8 \(1, 16, 16\): mean and std have 3 channels.*in RGB"):
        fl.offload(DataLoader(dataset, 2), device="cpu")


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_images_of_as_many_channels_as_the_normalisation_are_taken(channels):
    image = torch.arange(256 * channels).reshape(channels, 16, 16).to(torch.uint8)
    normalize = v2.Normalize([0.5] * channels, [0.25] * channels)
    loader = DataLoader(Constant(image, v2.CenterCrop(8), v2.ToImage(), UNIT, normalize), 4)
    assert torch.allclose(next(iter(fl.offload(loader, device="cpu")))[0], next(iter(loader))[0], atol=1e-5)


class WithEpochs(Pairs):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return {**super().__getitem__(index), "epoch": self.epoch}


@pytest.mark.parametrize("of", [lambda loader: loader, lambda loader: loader.dataset], ids=["loader", "its data set"])
def test_an_epoch_reaches_the_copy_of_the_data_set(pairs, of):
    dataset = WithEpochs(pairs.files, evaluation())
    loader = fl.offload(DataLoader(dataset, 4), device="cpu")
    of(loader).set_epoch(7)
    assert next(iter(loader))["epoch"].tolist() == [7] * 4
    assert dataset.epoch == 0
