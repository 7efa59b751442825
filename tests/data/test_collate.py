"""What samples may look like, and what becomes of their fields."""

import collections
import dataclasses
import errno
import os
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.datasets.folder import IMG_EXTENSIONS

from fastload.data.collate import collate
from fastload.data.encoded import EncodedImages, Kind
from fastload.data.files import EXTENSIONS
from fastload.decode.cpu import decode_on_cpu
from tests.files import BASELINE, OTHERS, by_pillow, jpeg, picture, saved

FILE = jpeg()
Pair = collections.namedtuple("Pair", ["image", "label"])


@dataclasses.dataclass(frozen=True)
class Sample:
    image: object
    label: object


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "photograph.JPG"
    path.write_bytes(FILE)
    return path


def contents(files):
    assert isinstance(files, EncodedImages)
    return [files.file(row).numpy().tobytes() for row in range(len(files))]


@pytest.mark.parametrize(
    "form",
    [
        bytes,
        bytearray,
        memoryview,
        lambda data: np.frombuffer(data, np.uint8),
        lambda data: torch.frombuffer(bytearray(data), dtype=torch.uint8),
        lambda data: np.repeat(np.frombuffer(data, np.uint8), 2)[::2],
    ],
    ids=["bytes", "bytearray", "memoryview", "array", "tensor", "strided array"],
)
def test_contents_of_every_form_are_packed(form):
    files, labels = collate([(form(FILE), 3), (form(FILE), 5)])
    assert contents(files) == [FILE, FILE]
    assert labels.tolist() == [3, 5]


def test_paths_are_read_and_are_names(path):
    files = collate([path, path])
    assert contents(files) == [FILE, FILE]
    assert files.names == [str(path)] * 2
    assert contents(collate([os.scandir(path.parent).__next__()])) == [FILE]


def test_strings_that_end_as_images_do_are_paths(path):
    files, caption = collate([(str(path), "a cat.")])
    assert contents(files) == [FILE]
    assert caption == ["a cat."]


def test_names_of_files_end_as_torchvisions_do():
    assert set(EXTENSIONS) >= set(IMG_EXTENSIONS)


def test_the_structure_is_kept():
    assert collate([Pair(FILE, 1)]).label.tolist() == [1]
    assert isinstance(collate([Pair(FILE, 1)]), Pair)
    assert type(collate([(FILE, 1)])) is tuple
    assert type(collate([[FILE, 1]])) is list
    batch = collate([{"views": [FILE, FILE], "label": 1, "more": {"id": 7}}])
    assert [contents(view) for view in batch["views"]] == [[FILE], [FILE]]
    assert (batch["label"].tolist(), batch["more"]["id"].tolist()) == ([1], [7])
    batch = collate([Sample(FILE, 3), Sample(FILE, 5)])
    assert (contents(batch.image), batch.label.tolist()) == ([FILE, FILE], [3, 5])


def test_what_ranks_below_is_no_file(path):
    labels = torch.tensor([0, 1, 1], dtype=torch.uint8)
    for image in (FILE, path):
        files, stacked, name = collate([(image, labels, "x.jpg")] * 2)
        assert contents(files) == [FILE, FILE]
        assert stacked.tolist() == [[0, 1, 1]] * 2
        assert name == ["x.jpg"] * 2
    files, paths = collate([(FILE, path)])
    assert contents(files) == [FILE]
    assert paths == [path]


def test_forms_may_change_within_a_batch(path):
    assert contents(collate([FILE, path, str(path), bytearray(FILE)])) == [FILE] * 4


def test_fields_that_cannot_be_stacked_are_a_list():
    ragged = [torch.zeros(2), torch.zeros(3)]
    _, sizes, dates = collate([(FILE, ragged[0], object), (FILE, ragged[1], object)])
    assert sizes == ragged
    assert dates == [object, object]


@pytest.mark.parametrize("counts", [(2, 2), (2, 3)], ids=["that could be stacked", "that could not"])
def test_targets_are_a_list_with_an_entry_for_each_sample(counts):
    plain = [{"boxes": torch.zeros(count, 4), "labels": torch.zeros(count)} for count in counts]
    assert collate([(FILE, target) for target in plain])[1] == plain

    typed = [tv_tensors.BoundingBoxes(torch.zeros(n, 4), format="XYXY", canvas_size=(48, 72)) for n in counts]
    _, boxes, labels = collate([(FILE, each, torch.zeros(len(each))) for each in typed])
    assert all(new is old for new, old in zip(boxes, typed, strict=True))
    assert isinstance(labels, list)

    batch = collate([{"image": FILE, **target} for target in plain])
    assert contents(batch["image"]) == [FILE, FILE]
    assert (type(batch["boxes"]), type(batch["labels"])) == (list, list)


BOX = {"bbox": [1.0, 2, 3, 4], "category_id": 3, "iscrowd": 0}
ANNOTATIONS = {
    "COCO": ([BOX, BOX], [BOX, BOX]),
    "COCO, other counts": ([BOX, BOX], [BOX]),
    "COCO, none": ([], []),
    "COCO, none in the first": ([], [BOX]),
    "Hugging Face": ({"bbox": [[1.0, 2, 3, 4]], "category": [3]}, {"bbox": [[5.0, 6, 7, 8]], "category": [4]}),
    "torchvision, none": ({"image_id": 1}, {"image_id": 2}),
    "torchvision, none in the first": ({"image_id": 1}, {"image_id": 2, "boxes": torch.zeros(1, 4)}),
    "nothing in the first": ({}, {"boxes": torch.zeros(1, 4)}),
}


@pytest.mark.parametrize("annotations", ANNOTATIONS.values(), ids=ANNOTATIONS)
def test_annotations_are_a_list_with_an_entry_for_each_sample(annotations):
    _, collated = collate([(FILE, each) for each in annotations])
    assert all(new is old for new, old in zip(collated, annotations, strict=True))
    batch = collate([{"image": FILE, "objects": each, "label": 3} for each in annotations])
    assert batch["objects"] == collated
    assert batch["label"].tolist() == [3, 3]


def test_a_path_that_cannot_be_read_is_bad_with_its_reason(tmp_path, path):
    files = collate([tmp_path / "none.jpg", path, tmp_path, Path("a\0b.jpg")])
    assert files.table[:, 4].tolist() == [Kind.BAD, Kind.JPEG, Kind.BAD, Kind.BAD]
    assert files.names[0] == str(tmp_path / "none.jpg")
    assert os.strerror(errno.ENOENT) in files.problems[0]
    assert os.strerror(errno.EISDIR) in files.problems[2]
    assert "null byte" in files.problems[3]
    assert contents(files)[1] == FILE


def test_a_file_of_more_bytes_than_are_read_is_bad(tmp_path, monkeypatch):
    sparse = tmp_path / "sparse.jpg"
    with sparse.open("wb") as file:
        file.truncate(2**42)
    assert "it has 4,398,046,511,104 bytes or more; at most 1,073,741,824 are read" in collate([sparse]).problems[0]
    monkeypatch.setattr(import_module("fastload.data.files"), "MOST_BYTES", 1000)
    untold = collate([Path("/proc/self/status"), FILE])  # its size is said to be 0
    assert list(untold.problems) == [0]
    assert "at most 1,000 are read of a file" in untold.problems[0]


def test_what_is_no_regular_file_is_bad_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    files = collate([tmp_path / "pipe.jpg", Path("/dev/zero"), FILE])
    assert files.problems == dict.fromkeys((0, 1), "it is no regular file but a pipe, a socket or a device")


@pytest.mark.parametrize("decode", [False, True])
def test_a_file_for_whose_pixels_a_batch_has_no_room_is_bad(decode):
    png, small = saved(picture(100, 100), "PNG"), jpeg(10, 10)
    files = collate([jpeg(100, 100), png, small, png, b"no image"], decode=decode, most_bytes=61_000)
    assert list(files.problems) == [3, 4]
    left = 61_000 - 2 * 30_000 - max(len(small) * (not decode), 300)
    assert f"30,000 bytes, and its batch may have {left} more: raise most_bytes of fl.collate" in files.problems[3]
    assert files.sizes.tolist() == [[100, 100], [100, 100], [10, 10], [0, 0], [0, 0]]
    images, problems = decode_on_cpu(files)
    assert problems == files.problems
    assert [images[row].shape for row in (3, 4)] == [(3, 1, 1)] * 2  # black images take no room


def test_bytes_behind_an_image_take_room_too():
    files = collate([jpeg(10, 10) + b"\0" * 1000, jpeg(10, 10)], most_bytes=1000)
    assert list(files.problems) == [0]


def test_a_bound_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"most_bytes must be an int of at least 1.*got 0"):
        collate([FILE], most_bytes=0)


def test_nothing_but_bad_files_is_a_batch_too():
    files = collate([b"", b""])
    assert (len(files), list(files.problems)) == (2, [0, 1])
    assert contents(files) == [b"", b""]


def test_samples_of_other_structure_are_refused():
    with pytest.raises(
        TypeError, match=r"sample\['views'\] must be alike.* 0, 1 in the first, and sample 1 is list of"
    ):
        collate([{"views": [FILE, FILE]}, {"views": [FILE]}])
    with pytest.raises(TypeError, match=r"sample must be alike.* 0, 1 in the first, and sample 1 is tuple of"):
        collate([(FILE, 1), (FILE, 1, 2)])


def test_samples_without_a_file_are_refused():
    with pytest.raises(
        TypeError, match=r"none: tuple of \(Tensor torch.float32 \(3, 4, 5\), int\).*leave out collate_fn"
    ):
        collate([(torch.zeros(3, 4, 5), 1)])
    with pytest.raises(TypeError, match=r"none: {'caption': str}"):
        collate([{"caption": "a cat"}])


def test_something_else_in_a_files_place_is_refused():
    with pytest.raises(TypeError, match="sample 1 has no file where the first of its batch has one: NoneType"):
        collate([(FILE, 1), (None, 2)])


def test_an_opened_image_at_another_page_than_the_first_is_refused(tmp_path):
    path = tmp_path / "pages.tif"
    pages = [picture(seed=number) for number in range(2)]
    pages[0].save(path, save_all=True, append_images=pages[1:])
    first, second = (Image.open(path) for _ in range(2))
    second.seek(1)
    assert len(collate([first])) == 1
    with pytest.raises(TypeError, match=r"sample 1 has no file.*opened by Pillow at its first page"):
        collate([first, second])
    with pytest.raises(TypeError, match="the first of the samples has none: TiffImageFile"):
        collate([second])


def test_pixels_of_more_than_pillows_limit_are_bad(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    with pytest.warns(Image.DecompressionBombWarning):  # in this process, Pillow's warnings are its user's
        files = collate([FILE, jpeg(20, 30)])
    assert list(files.problems) == [0]
    assert "48 x 72 = 3,456 pixels; at most 2,000" in files.problems[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_yields_the_same_from_workers(workers):
    every = BASELINE | OTHERS
    dataset = list(zip(every.values(), range(len(every)), strict=True))
    images, labels = [], []
    for files, numbers in DataLoader(dataset, batch_size=8, num_workers=workers, collate_fn=collate):
        images += decode_on_cpu(files)[0]
        labels += numbers.tolist()
    assert labels == list(range(len(every)))
    for name, image in zip(every, images, strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), by_pillow(every[name])), name


def warn_by_raising(_):
    warnings.simplefilter("error")


def test_workers_are_quiet():
    file = saved(picture(mode="P"), "PNG", transparency=b"\0\x80")
    with pytest.warns(UserWarning, match="Transparency"):
        collate([file])
    (files,) = DataLoader([file], num_workers=1, collate_fn=collate, worker_init_fn=warn_by_raising)
    assert files.problems == {}
