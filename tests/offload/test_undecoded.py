"""JPEGs as Pillow opens them for a data set that hands over files."""

import io
import pickle

import numpy as np
import pytest
from PIL import Image, ImageOps

from fastload.offload.opening import undecoded_jpegs
from fastload.offload.undecoded import contents_of


@pytest.fixture
def photograph(tmp_path):
    pixels = np.linspace(0, 255, 40 * 30 * 3).reshape(30, 40, 3).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photograph.jpg", quality=90)
    return tmp_path / "photograph.jpg"


def rotated(path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(path).save(path, exif=exif)
    return path


def test_a_file_that_is_closed_after_convert_is_still_there(photograph):
    with undecoded_jpegs():
        with photograph.open("rb") as file:
            image = Image.open(file).convert("RGB")
        assert contents_of(image) == photograph.read_bytes()
        assert image.source == str(photograph)
        assert (image.mode, image.size) == ("RGB", (40, 30))


@pytest.mark.parametrize(
    "use",
    [
        lambda image: image,
        lambda image: image.convert("L"),
        lambda image: image.resize((7, 5)),
        lambda image: image.crop((1, 2, 20, 20)),
        lambda image: image.convert("RGB").rotate(30),
        ImageOps.exif_transpose,
        lambda image: pickle.loads(pickle.dumps(image)),
    ],
)
def test_whatever_looks_at_pixels_sees_those_of_pillow(photograph, use):
    with undecoded_jpegs():
        ours = np.asarray(use(Image.open(photograph)))
    assert (ours == np.asarray(use(Image.open(photograph)))).all()


def test_what_was_pickled_is_an_image_as_any_other(photograph):
    with undecoded_jpegs():
        image = pickle.loads(pickle.dumps(Image.open(photograph)))
    assert contents_of(image.convert("RGB")) is None
    assert image.convert("RGB").size == (40, 30)


def test_what_looked_at_pixels_hands_over_no_file(photograph):
    with undecoded_jpegs():
        image = Image.open(photograph)
        image.getpixel((0, 0))
    assert contents_of(image) is None


def test_an_image_that_is_to_be_decoded_smaller_is_decoded(photograph):
    with undecoded_jpegs():
        image = Image.open(photograph)
        image.draft("RGB", (20, 15))
        assert image.convert("RGB").size == (20, 15)
        assert contents_of(image) is None


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_colours_that_pillow_converts_are_converted_by_pillow(tmp_path, mode):
    Image.new(mode, (4, 2), 7).save(tmp_path / "image.jpg")
    with undecoded_jpegs():
        image = Image.open(tmp_path / "image.jpg").convert("RGB")
    assert contents_of(image) is None
    assert (np.asarray(image) == np.asarray(Image.open(tmp_path / "image.jpg").convert("RGB"))).all()


def test_an_image_that_exif_rotates_is_decoded_as_the_data_set_does(photograph):
    with undecoded_jpegs():
        image = Image.open(rotated(photograph)).convert("RGB")
    assert contents_of(image) is None
    assert image.size == (40, 30)


def test_elsewhere_images_are_pillows_own(photograph):
    with undecoded_jpegs():
        pass
    image = Image.open(photograph)
    assert type(image).__name__ == "JpegImageFile"
    assert contents_of(image.convert("RGB")) is None


def test_other_formats_are_pillows_own():
    Image.new("RGB", (4, 2)).save(file := io.BytesIO(), "PNG")
    with undecoded_jpegs():
        assert contents_of(Image.open(file)) is None
