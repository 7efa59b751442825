"""Which field of a sample is its image file: what is found, what the user states, and what is asked back."""

import functools
import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.tv_tensors import Mask

import fastload as fl
from fastload import transforms as T
from fastload.data.encoded import EncodedImages
from tests.files import jpeg, picture, saved

FILE, OTHER = jpeg(), jpeg(seed=1)
COLOURED = saved(picture(), "PNG")
FORMATS = {
    kind: saved(picture(8, 8), kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "JPEG2000")
}
LABELS = {"digits": b"3", "empty": b"", "text": b"BMW 3", "an int64": np.int64(12).tobytes()}


def packed(batch):
    """The fields that are files."""
    return [key for key, field in batch.items() if isinstance(field, EncodedImages)]


@pytest.fixture
def pair(tmp_path):
    """Paths of a photograph and of its mask, a PNG whose values are numbers of classes."""
    values = (np.arange(48)[:, None] > np.arange(72)).astype(np.uint8) * 7
    (tmp_path / "a.jpg").write_bytes(FILE)
    Image.fromarray(values).save(tmp_path / "a.png")
    return tmp_path / "a.jpg", tmp_path / "a.png", torch.from_numpy(values)


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("file", FORMATS.values(), ids=FORMATS)
def test_a_label_in_bytes_is_no_file(file, label):
    batch = fl.collate([{"cls": label, "jpg": file, "__key__": "0"}] * 2)
    assert packed(batch) == ["jpg"]
    assert batch["cls"] == [label, label]


def test_a_label_in_bytes_is_no_file_beside_a_path(pair):
    files, labels = fl.collate([(pair[0], b"3")])
    assert (len(files), labels) == (1, [b"3"])


def test_a_path_that_ends_as_no_image_is_no_file_beside_one(pair):
    files, others = fl.collate([(pair[0], pair[0].with_suffix(".json"))])
    assert (files.problems, others) == ({}, [pair[0].with_suffix(".json")])


def test_a_damaged_first_file_decides_nothing():
    batch = fl.collate([{"jpg": b"damaged", "cls": b"3"}, {"jpg": FILE, "cls": b"5"}])
    assert packed(batch) == ["jpg"]
    assert list(batch["jpg"].problems) == [0]
    assert batch["cls"] == [b"3", b"5"]


def test_where_nothing_looks_like_an_image_the_user_is_asked():
    samples = [{"jpg": b"damaged", "cls": b"3"}] * 2
    with pytest.raises(TypeError, match=r"sample\['jpg'\] and sample\['cls'\] may be files.*images='jpg'"):
        fl.collate(samples)
    assert list(fl.collate(samples, images="jpg")["jpg"].problems) == [0, 1]
    assert list(fl.collate([(b"damaged", 3)])[0].problems) == [0]  # there is nothing else that it could be


@pytest.mark.parametrize(
    "images",
    ["left", ["left"], ("left",), ("all", "left"), lambda sample: sample["left"]],
    ids=["key", "list", "path", "deep path", "function"],
)
def test_the_user_says_which_field_is_the_image(images):
    sample = {"left": FILE, "right": OTHER, "all": {"left": OTHER, "right": OTHER}}
    batch = fl.collate([sample, sample], images=images)
    named = batch["all"] if images == ("all", "left") else batch
    assert packed(named) == ["left"]
    assert batch["right"] == [OTHER, OTHER]


def test_a_list_of_rules_is_views():
    left, right, third = fl.collate([(FILE, OTHER, OTHER)], images=[0, -1])[::-1]
    assert (type(left), right, type(third)) == (EncodedImages, [OTHER], EncodedImages)
    views, _ = fl.collate([([FILE, OTHER], 3)], images=0)
    assert [type(view) for view in views] == [EncodedImages, EncodedImages]


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ("png", "there is no 'png' in what has 'jpg', 'label'; the first sample is {'jpg': bytes, 'label': int}"),
        ("label", r"sample\['label'\] is int"),
        (("jpg", "bytes"), "there is no 'bytes' in it"),
        (lambda sample: sample["jpg"] + b"...", "it returns bytes, which is no field"),
    ],
)
def test_a_rule_that_names_no_file_is_refused(images, said):
    with pytest.raises(TypeError, match=f"images=.* must name image files of the samples; .*{said}"):
        fl.collate([{"jpg": FILE, "label": 3}], images=images)


def test_an_image_that_pillow_has_opened_is_a_file_until_it_is_decoded(pair):
    decoded = Image.open(pair[0])
    decoded.load()
    for opened in (Image.open(pair[0]), Image.open(io.BytesIO(FILE))):
        with opened:
            (files, others), size = fl.collate([(opened, decoded)]), opened.size
            assert files.file(0).numpy().tobytes() == FILE
            assert others == [decoded]
            assert opened.size == size == (72, 48)
    with pytest.raises(TypeError, match=r"the first of the samples has none: tuple of .JpegImageFile, int"):
        fl.collate([(decoded, 3)])


RECORDS = {
    "contents": lambda _: {"bytes": FILE, "path": None},
    "path": lambda path: {"bytes": None, "path": str(path)},
    "contents with their name": lambda _: {"bytes": FILE, "path": "a photograph"},
}


@pytest.mark.parametrize("images", [None, "image"])
@pytest.mark.parametrize("form", RECORDS)
def test_what_hugging_face_yields_is_a_file(form, images, pair):
    sample = {"image": RECORDS[form](pair[0]), "label": 3}
    batch = fl.collate([sample, {"image": RECORDS["contents"](pair[0]), "label": 5}], images=images)
    assert batch["label"].tolist() == [3, 5]
    assert [batch["image"].file(row).numpy().tobytes() for row in range(2)] == [FILE, FILE]
    assert batch["image"].names[0] == (sample["image"]["path"] or "sample 0")


def test_a_path_of_the_user_leads_into_what_hugging_face_yields():
    batch = fl.collate([{"image": {"bytes": FILE, "path": "a.jpg"}}], images=("image", "bytes"))
    assert packed(batch["image"]) == ["bytes"]
    assert batch["image"]["path"] == ["a.jpg"]


def test_a_row_of_contents_and_path_keeps_both():
    batch = fl.collate([{"bytes": FILE, "path": "a.jpg"}])
    assert packed(batch) == ["bytes"]
    assert batch["path"] == ["a.jpg"]


def test_sound_is_no_image():
    sample = {"audio": {"bytes": b"RIFF1234WAVE", "path": "a.wav"}, "image": {"bytes": FILE, "path": None}}
    assert packed(fl.collate([sample])) == ["image"]


def objects(*values):
    column = np.empty(len(values), object)
    column[:] = values
    return column


def test_columns_are_samples():
    columns = {
        "image": objects(FILE, OTHER),
        "label": np.array([3, 5]),
        "weight": np.array([0.5, 1], np.float32),
        "embedding": np.arange(6).reshape(2, 3),
        "name": objects("a", "b"),
        "tags": objects(np.zeros(2), np.zeros(3)),
    }
    batch = fl.collate(columns)
    assert packed(batch) == ["image"]
    assert (batch["label"].tolist(), batch["label"].dtype) == ([3, 5], torch.int64)
    assert (batch["weight"].tolist(), batch["weight"].dtype) == ([0.5, 1], torch.float32)
    assert batch["embedding"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert batch["name"] == ["a", "b"]
    assert [len(tags) for tags in batch["tags"]] == [2, 3]
    assert packed(fl.collate({"a": objects(FILE), "b": objects(OTHER)}, images="b")) == ["b"]


@pytest.mark.parametrize(
    "sample",
    [lambda image, mask: (image, mask), lambda image, mask: {"x": image.read_bytes(), "y": mask.read_bytes()}],
    ids=["paths", "bytes"],
)
def test_a_mask_is_not_taken_for_a_view(sample, pair):
    with pytest.raises(TypeError, match=r"may be a mask.*images=(0|'x'), masks=(1|'y')\).*images=\[(0, 1|'x', 'y')\]"):
        fl.collate([sample(*pair[:2])])


def test_a_grey_photograph_is_not_taken_for_a_mask_where_others_have_colours():
    grey, coloured = (saved(picture(6, 8, mode), "PNG") for mode in ("L", "RGB"))
    one, other = {"left": grey, "right": coloured}, {"left": coloured, "right": grey}
    assert packed(fl.collate([one, other])) == ["left", "right"]
    with pytest.raises(TypeError, match=r"images='right', masks='left'"):
        fl.collate([one, one])


def test_a_field_named_as_a_mask_is_not_taken_for_a_view():
    with pytest.raises(TypeError, match="images='image', masks='the_mask'"):
        fl.collate([{"the_mask": COLOURED, "image": COLOURED}])
    assert packed(fl.collate([{"left": COLOURED, "right": COLOURED}])) == ["left", "right"]


@pytest.mark.parametrize("workers", [0, 1])
def test_masks_in_files_follow_their_images_with_their_values(workers, pair):
    image, mask, values = pair
    for options in ({"images": 0, "masks": 1}, {"masks": -1}):
        loader = DataLoader(
            [(image, mask)] * 2, 2, num_workers=workers, collate_fn=functools.partial(fl.collate, **options)
        )
        flip = T.Compose([T.DecodeJpeg(), T.RandomHorizontalFlip(1.0)])
        ((images, masks),) = fl.PrefetchLoader(loader, transform=flip, device="cpu")
        assert len(images) == 2
        assert [type(each) for each in masks] == [Mask, Mask]
        assert all(torch.equal(each, values.flip(-1)) for each in masks)


@pytest.mark.parametrize(
    ("mode", "dtype"), [("L", torch.uint8), ("P", torch.uint8), ("1", torch.bool), ("I;16", torch.int32)]
)
def test_masks_keep_the_values_that_are_stored(mode, dtype):
    stored = picture(6, 8, "L").convert("I").convert("I;16") if mode == "I;16" else picture(6, 8, mode)
    file = saved(stored, "TIFF")
    _, (mask,) = fl.collate([(FILE, file)], images=0, masks=1)
    assert (type(mask), mask.dtype) == (Mask, dtype)
    assert mask.tolist() == np.array(stored).tolist()


def test_a_mask_that_cannot_be_decoded_is_named(pair):
    with pytest.raises(ValueError, match=r"the mask .*none.png cannot be decoded: .*No such file"):
        fl.collate([(pair[0], pair[1].with_name("none.png"))], images=0, masks=1)
    with pytest.raises(TypeError, match="sample 1 has no file where"):
        fl.collate([(pair[0], pair[1]), (pair[0], None)], images=0, masks=1)
