"""What is beside a bad file is left out with it, however the batch was collated, or fits the black image there."""

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2
from torchvision.tv_tensors import BoundingBoxes, Mask

import fastload as fl
from fastload import transforms as T
from tests.files import jpeg, saved

GOOD, BAD = jpeg(8, 8), b"\xff\xd8\xffdamaged"
BOXES = BoundingBoxes([[0, 0, 3, 3], [1, 1, 5, 5]], format="XYXY", canvas_size=(8, 8))


def left(batches):
    """The only batch, from which a file was left out."""
    with pytest.warns(UserWarning, match="left out"):
        (batch,) = fl.PrefetchLoader(batches, transform=T.DecodeJpeg(on_error="skip"), device="cpu")
    return batch


# Two samples, so that a list of two may be one of samples or one of fields: what is beside a bad and a good file, and
# what is left of it.
FIELDS = {
    "a number": (0, 1, torch.tensor([1])),
    "a word": ("cat", "dog", ["dog"]),
    "two words": (("cat", "persian"), ("dog", "poodle"), [("dog",), ("poodle",)]),
    "a word and a number": (("cat", 0), ("dog", 1), [("dog",), torch.tensor([1])]),
    "two vectors": ([*torch.zeros(2, 3)], [*torch.ones(2, 3)], [torch.ones(1, 3)] * 2),
    "words by name": ({"name": "cat"}, {"name": "dog"}, {"name": ["dog"]}),
    "vectors of two sizes": (torch.zeros(2), torch.ones(3), [torch.ones(3)]),
    "boxes": ({"boxes": torch.zeros(2, 4)}, {"boxes": torch.ones(2, 4)}, [{"boxes": torch.ones(2, 4)}]),
    "typed boxes and labels": ((BOXES, torch.zeros(2)), (BOXES, torch.ones(2)), [(BOXES, torch.ones(2))]),
}  # fmt: skip


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_left_out_with_its_file(name, workers):
    bad, good, rest = FIELDS[name]
    loader = DataLoader([(BAD, bad), (GOOD, good)], batch_size=2, collate_fn=fl.collate, num_workers=workers)
    images, fields = left(loader)
    assert len(images) == 1
    assert repr(fields) == repr(rest)


def test_boxes_and_labels_beside_an_image_by_name_are_left_out_with_it():
    samples = [{"image": file, "boxes": BOXES, "labels": torch.tensor([n, n])} for n, file in enumerate((BAD, GOOD))]
    batch = left(DataLoader(samples, batch_size=2, collate_fn=fl.collate))
    assert repr(batch["boxes"]) == repr([BOXES])
    assert repr(batch["labels"]) == repr([torch.tensor([1, 1])])


@pytest.mark.parametrize("on_error", ["raise", "skip", "zero"])
def test_a_batch_in_which_no_file_of_a_field_begins_as_an_image_is_refused(on_error):
    samples = [{"left": GOOD, "right": bytes(300) if number == 4 else GOOD} for number in range(5)]
    loader = DataLoader(samples, batch_size=2, collate_fn=fl.collate)
    transform = T.DecodeJpeg(on_error=on_error)
    with pytest.raises(TypeError, match=r"batch\['right'\] has image files in other.* images=\['left', 'right'\]"):
        list(fl.PrefetchLoader(loader, transform=transform, device="cpu"))
    loader = DataLoader(samples, batch_size=2, collate_fn=partial(fl.collate, images=["left", "right"]))
    with pytest.raises(T.BadImageError) if on_error == "raise" else pytest.warns(UserWarning, match="sample 0"):
        list(fl.PrefetchLoader(loader, transform=transform, device="cpu"))


@pytest.mark.parametrize("word", [b"", b"cat"])
def test_a_word_where_other_batches_have_files_is_handed_on(word):
    samples = [{"left": GOOD, "right": GOOD}, {"left": GOOD, "right": word}]
    _, batch = fl.PrefetchLoader(
        DataLoader(samples, batch_size=1, collate_fn=fl.collate), transform=T.DecodeJpeg(), device="cpu"
    )
    assert batch["right"] == [word]


def test_a_batch_may_be_put_into_another_container():
    def collate(samples):
        return {"pairs": fl.collate(samples), "number": torch.arange(len(samples))}

    batch = left(DataLoader([(BAD, ("cat", "persian")), (GOOD, ("dog", "poodle"))], batch_size=2, collate_fn=collate))
    assert batch["pairs"][1] == [("dog",), ("poodle",)]
    assert batch["number"].tolist() == [1]


# What users make of what fl.collate returned, beside three files of which the first is bad.
OWN = {
    "one more list": lambda files, numbers, names: (files, numbers, names, ["x", "y", "z"]),
    "another order": lambda files, numbers, names: (files, names, numbers),
    "numbers as a list": lambda files, numbers, names: (files, numbers.tolist(), names),
    "as many fields as samples": lambda files, numbers, names: (files, [numbers, 2 * numbers, 3 * numbers], names),
    "by name": lambda files, numbers, names: {"files": files, "numbers": numbers, "names": names},
}
LEFT = {
    "one more list": (torch.tensor([1, 2]), ["b", "c"], ["y", "z"]),
    "another order": (["b", "c"], torch.tensor([1, 2])),
    "numbers as a list": ([1, 2], ["b", "c"]),
    "as many fields as samples": ([torch.tensor([1, 2]), torch.tensor([2, 4]), torch.tensor([3, 6])], ["b", "c"]),
    "by name": (torch.tensor([1, 2]), ["b", "c"]),
}


@pytest.mark.parametrize("name", OWN)
def test_a_collate_function_may_change_what_was_collated(name):
    def collate(samples):
        return OWN[name](*fl.collate(samples))

    samples = [(BAD, 0, "a"), (GOOD, 1, "b"), (GOOD, 2, "c")]
    batch = left(DataLoader(samples, batch_size=3, collate_fn=collate))
    _, *fields = batch.values() if isinstance(batch, dict) else batch
    assert repr(tuple(fields)) == repr(LEFT[name])


class Graphs:
    """Moves itself, and has no rows."""

    def __init__(self, values):
        self.values = values

    def to(self, *options, **settings):
        return Graphs(self.values.to(*options, **settings))

    def record_stream(self, stream):
        self.values.record_stream(stream)


def test_an_object_of_the_users_is_left_as_it_is():
    assert of_three(Graphs(torch.arange(3))).values.tolist() == [0, 1, 2]


def of_three(labels):
    """Labels beside a bad file and two good ones, by a collate function of the user's."""
    (_, rest) = left([(fl.collate([BAD, GOOD, GOOD]), labels)])
    return rest


def test_arrays_lose_rows():
    assert of_three(np.arange(3)).tolist() == [1, 2]
    assert of_three(np.arange(6).reshape(3, 2)).tolist() == [[2, 3], [4, 5]]


def test_sparse_tensors_lose_rows():
    assert torch.equal(of_three(torch.eye(3).to_sparse()).to_dense(), torch.eye(3)[1:])


def test_tensor_dicts_lose_rows():
    tensordict = pytest.importorskip("tensordict")
    assert of_three(tensordict.TensorDict({"x": torch.arange(3)}, batch_size=[3]))["x"].tolist() == [1, 2]


class Segmentation(Dataset):
    """An image, and a mask of its left column; the file of one is damaged."""

    def __init__(self, folder, transform):
        self.folder, self.transform = folder, transform
        for number in range(3):
            (folder / f"{number}.jpg").write_bytes(BAD if number == 1 else GOOD)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        image = Image.open(self.folder / f"{index}.jpg").convert("RGB")
        mask = torch.zeros(8, 8, dtype=torch.uint8)
        mask[:, 0] = 1
        return *self.transform(image, Mask(mask)), ("a", "b", "c")


def test_masks_and_words_are_left_out_where_pytorch_collates(tmp_path):
    transform = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    loader = fl.offload(DataLoader(Segmentation(tmp_path, transform), 3), on_error="skip", device="cpu", verbose=False)
    with pytest.warns(UserWarning, match="left out"):
        ((images, masks, words),) = loader
    assert len(images) == 2
    assert type(masks) is Mask
    assert masks[:, 0].tolist() == [[0] * 7 + [1]] * 2
    assert words == [("a", "a"), ("b", "b"), ("c", "c")]


@pytest.mark.parametrize("policy", ["skip", "zero"])
def test_steps_that_ask_for_a_size_take_a_black_image(policy):
    transform = T.Compose([T.DecodeJpeg(on_error=policy), T.RandomCrop(6)])
    loader = DataLoader([(BAD, 0), (GOOD, 1)], 2, collate_fn=fl.collate)
    with pytest.warns(UserWarning, match="black" if policy == "zero" else "left out"):
        ((images, labels),) = fl.PrefetchLoader(loader, transform=transform, device="cpu")
    assert images.shape == (len(labels), 3, 6, 6)
    assert images[-1].any()
    assert labels.tolist() == ([0, 1] if policy == "zero" else [1])


def test_boxes_of_a_black_image_follow_it():
    transform = T.Compose([T.DecodeJpeg(on_error="zero"), T.RandomHorizontalFlip(1.0)])
    wide = BoundingBoxes([[0, 0, 3, 3]], format="XYXY", canvas_size=(10, 20))
    loader = DataLoader([(BAD, {"boxes": wide}), (GOOD, {"boxes": BOXES})], 2, collate_fn=fl.collate)
    with pytest.warns(UserWarning, match="black"):
        ((images, targets),) = fl.PrefetchLoader(loader, transform=transform, device="cpu")
    assert [tuple(image.shape) for image in images] == [(3, 10, 20), (3, 8, 8)]
    assert [target["boxes"].tolist() for target in targets] == [[[17, 0, 20, 3]], [[5, 0, 8, 3], [3, 1, 7, 5]]]


def test_a_mask_of_a_black_image_follows_it_where_pytorch_collates(tmp_path):
    transform = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    loader = fl.offload(DataLoader(Segmentation(tmp_path, transform), 3), on_error="zero", device="cpu", verbose=False)
    with pytest.warns(UserWarning, match="black"):
        ((images, masks, _),) = loader
    assert images.shape == (3, 3, 8, 8)
    assert masks[:, 0].tolist() == [[0] * 7 + [1]] * 3


def test_a_mask_in_a_file_fits_its_black_image():
    masks = [saved(Image.new("L", size, 7), "PNG") for size in ((6, 4), (8, 8))]
    collate = partial(fl.collate, images=0, masks=1)
    loader = DataLoader([*zip((BAD, GOOD), masks, strict=True)], 2, collate_fn=collate)
    transform = T.Compose([T.DecodeJpeg(on_error="zero"), T.RandomHorizontalFlip(1.0)])
    with pytest.warns(UserWarning, match="black"):
        ((images, masks),) = fl.PrefetchLoader(loader, transform=transform, device="cpu")
    assert [image.shape[1:] for image in images] == [mask.shape[-2:] for mask in masks] == [(4, 6), (8, 8)]
