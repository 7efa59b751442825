"""Mutated files of every accepted format: bad ones are named, good ones are Pillow's, neighbours are whole."""

import pytest
from PIL import Image

from tests import fuzz_files
from tests.counts import count


@pytest.mark.parametrize("kind", fuzz_files.kinds())
def test_mutated_files_are_decoded_or_named(kind, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", fuzz_files.MOST_PIXELS)
    number = count(full=1700, here=30)
    tallies = [fuzz_files.fuzz(kind, number, on_error, seed) for seed, on_error in enumerate(fuzz_files.POLICIES)]
    assert [tally.problems for tally in tallies] == [[]] * len(tallies)
    assert 0 < sum(tally.bad for tally in tallies) < sum(tally.files for tally in tallies)  # both ends are exercised


def test_the_fuzzer_finds_a_bad_file_that_passes(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", fuzz_files.MOST_PIXELS)
    monkeypatch.setattr(fuzz_files, "by_pillow", lambda _: (None, False))
    assert "are bad" in fuzz_files.fuzz("BMP", 4, "raise").problems[0]
