"""One file through Pillow: its pixels or a reason."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from fastload.data.jpeg_header import scans
from fastload.data.pixels import UndecodableError, pixels, values
from tests.files import BASELINE, BROKEN, OTHERS, by_pillow, inserted, jpeg, picture, saved


def test_they_are_pillows():
    files = BASELINE | OTHERS
    assert [name for name, data in files.items() if not np.array_equal(pixels(data), by_pillow(data))] == []


def reason(data):
    with pytest.raises(UndecodableError) as refused:
        pixels(data)
    return str(refused.value)


def test_what_pillow_refuses_has_a_reason():
    assert [name for name, data in BROKEN.items() if by_pillow(data) is not None] == []
    beginnings = {
        "empty": "the file is empty",
        "garbage": "no image of JPEG, PNG, WEBP, GIF",
        "truncated": "OSError: image file is truncated",
        "bomb": "DecompressionBombError: Image size (4294836225 pixels) exceeds limit",
    }
    reasons = {name: reason(data) for name, data in BROKEN.items()}
    assert all(reasons.values())
    assert {name: reasons[name][: len(text)] for name, text in beginnings.items()} == beginnings


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_grey_of_16_bits_is_scaled(kind):
    """Pillow's own conversion makes all values above 255 white."""
    values = np.linspace(0, 65535, 3000).astype(np.uint16).reshape(50, 60)
    scaled = pixels(saved(Image.fromarray(values), kind))
    assert np.array_equal(scaled, np.repeat(np.round(values / 257).astype(np.uint8)[:, :, None], 3, axis=2))


def with_scans(count):
    """A progressive JPEG whose last scan is there so many times more."""
    file = jpeg(8, 8, progressive=True)
    last = file.rindex(b"\xff\xda")
    return file[:-2] + file[last:-2] * count + file[-2:]


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(monkeypatch):
    """A megabyte of them would take half an hour: each is a pass over all pixels."""
    assert scans(jpeg(), 1000) == 1
    assert scans(jpeg(progressive=True), 1000) == 10
    assert scans(with_scans(7), 1000) == 17
    assert scans(OTHERS["PNG"], 1000) == 0
    many = with_scans(500)
    hidden = inserted(many, 0xFE, b"\xff\xd9")  # what looks like the end, in a comment
    assert pixels(with_scans(7)).shape == (8, 8, 3)
    monkeypatch.setattr(Image.Image, "load", lambda _: pytest.fail("decoded"))
    for file in (many, hidden):
        assert reason(file) == "it has more than 100 scans"


def icon(image):
    """An icon whose header tells a size of 16x16."""
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(image), 22) + image


@pytest.mark.filterwarnings("ignore:Image was not the expected size")
def test_an_icon_that_is_larger_than_its_header_tells_is_held_to_the_limits(monkeypatch):
    file = icon(saved(picture(60, 60), "PNG"))
    assert pixels(file).shape == (60, 60, 3)
    with pytest.raises(UndecodableError, match="10,800 bytes, and its batch may have 10,000 more"):
        pixels(file, most_bytes=10_000)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    with pytest.warns(Image.DecompressionBombWarning):
        assert "60 x 60 = 3,600 pixels; at most 2,000" in reason(file)


@pytest.mark.parametrize("value", [0.25, -3.5, 1e9])
def test_values_that_are_no_whole_numbers_stay(value):
    file = saved(Image.new("F", (3, 2), value), "TIFF")
    stored = values(file).values
    assert stored.dtype == np.float32
    assert stored.tolist() == np.full((2, 3), value, np.float32).tolist()


def test_no_file_makes_pillow_run_a_program(monkeypatch):
    """Encapsulated PostScript, whatever it is called, would be run by Ghostscript where that is installed."""
    eps = saved(picture(), "EPS")
    monkeypatch.setattr(Image.Image, "load", lambda _: pytest.fail("opened"))
    assert Image.open(io.BytesIO(eps)).format == "EPS"
    assert "no image of JPEG, PNG" in reason(eps)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch):
    bomb = saved(Image.new("1", (300, 100)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20_000)
    monkeypatch.setattr(Image.Image, "load", lambda _: pytest.fail("decoded"))
    with pytest.raises(UndecodableError, match=r"100 x 300 = 30,000 pixels; at most 20,000 are decoded"):
        pixels(bomb)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)  # Pillow's own words, above twice the limit
    with pytest.raises(UndecodableError, match=r"30000 pixels.* limit of 20000 pixels"):
        pixels(bomb)


def test_without_a_limit_everything_is_decoded(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert pixels(jpeg()).shape == (48, 72, 3)


def test_unreadable_metadata_turns_nothing():
    plain = jpeg()
    odd = inserted(plain, 0xE1, b"Exif\0\0no table at all")
    assert np.array_equal(pixels(odd), by_pillow(plain))
