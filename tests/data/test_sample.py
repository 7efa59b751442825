"""Sample data: what lands in the folder, and what is refused."""

import hashlib
import sys

import numpy as np
import pytest
from PIL import Image
from skimage import data
from skimage.feature import match_template
from torchvision.datasets import ImageFolder

from fastload.data import sample_data

IMAGES = 200


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    return sample_data(tmp_path_factory.mktemp("data") / "photographs", IMAGES)


def contents(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.jpg")}


def test_layout_is_image_folders_with_one_image_in_five_held_out(photographs):
    train, held_out = ImageFolder(photographs / "train"), ImageFolder(photographs / "val")
    assert (len(train), len(held_out)) == (IMAGES * 4 // 5, IMAGES // 5)
    assert len(train.classes) == 10
    assert held_out.classes == train.classes
    assert set(held_out.targets) == set(train.targets) == set(range(10))


def test_files_are_about_the_size_of_imagenets(photographs):
    paths = list(photographs.rglob("*.jpg"))
    width, height = np.mean([sorted(Image.open(path).size, reverse=True) for path in paths], axis=0)
    assert width == pytest.approx(500, rel=0.1)
    assert height == pytest.approx(375, rel=0.1)
    assert np.mean([path.stat().st_size for path in paths]) == pytest.approx(110_000, rel=0.3)
    assert {Image.open(path).format for path in paths} == {"JPEG"}
    assert {Image.open(path).mode for path in paths} == {"RGB"}


def test_some_images_stand_upright(photographs):
    upright = [height > width for width, height in (Image.open(path).size for path in photographs.rglob("*.jpg"))]
    assert 0.1 < np.mean(upright) < 0.4


def test_images_are_cut_at_native_resolution(photographs):
    coffee = np.asarray(Image.fromarray(data.coffee()).convert("L"), dtype=float)
    for path in (photographs / "val" / "coffee").iterdir():
        crop = np.asarray(Image.open(path).convert("L"), dtype=float)
        assert match_template(coffee, crop).max() > 0.999


def test_no_image_occurs_twice_in_either_split(photographs):
    assert len({hashlib.sha256(image).digest() for image in contents(photographs).values()}) == IMAGES


def test_same_seed_gives_the_same_bytes(photographs, tmp_path):
    assert contents(sample_data(tmp_path / "again", IMAGES)) == contents(photographs)


def test_another_seed_gives_other_images_of_the_same_layout(photographs, tmp_path):
    first, other = contents(photographs), contents(sample_data(tmp_path / "other", IMAGES, seed=1))
    assert first.keys() == other.keys()
    assert len(set(first.values()) & set(other.values())) < IMAGES / 20


@pytest.mark.parametrize("images", [20, 37])
def test_every_class_has_training_and_held_out_images(images, tmp_path):
    root = sample_data(tmp_path, images)
    assert len(contents(root)) == images
    for split in ("train", "val"):
        assert len(ImageFolder(root / split).classes) == 10


@pytest.mark.parametrize("images", [-1, 0, 19, 100_001])
def test_a_number_of_images_out_of_range_is_refused(images, tmp_path):
    with pytest.raises(ValueError, match=f"from 20 to 100,000; got {images}"):
        sample_data(tmp_path / "photographs", images)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not an empty folder"):
        sample_data(tmp_path, 20)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_without_scikit_image_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-image pooch"):
        sample_data(tmp_path / "photographs", 20)
