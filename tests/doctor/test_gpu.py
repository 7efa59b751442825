"""What the doctor measures only where there is a GPU: copies to it, and the loader that ``fl.offload`` makes."""

import pytest

from fastload import doctor
from tests.files import jpeg


@pytest.mark.gpu
def test_copies_and_the_offloaded_loader_are_timed(tmp_path):
    for number in range(160):
        file = tmp_path / "ab"[number % 2] / f"{number}.jpg"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(jpeg(375, 500, seed=number))
    found = doctor.examine(doctor.find(str(tmp_path), [], steps=10, seconds=5))
    assert found.copies.pinned > 0
    assert found.copies.pageable > 0
    assert found.rates[1] > 0
    assert found.moved.samples_per_second > 0, found.moved.refused
