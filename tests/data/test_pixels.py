"""One file through Pillow: its pixels or a reason."""

import io

import numpy as np
import pytest
from PIL import Image

from fastload.data.pixels import UndecodableError, pixels
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
