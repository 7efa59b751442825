"""Files as workers hand them over, and their pixels on the CPU."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.tv_tensors import BoundingBoxes, Mask

from fastload.data.collate import collate
from fastload.data.encoded import ALIGNMENT, Kind
from fastload.decode.cpu import decode_on_cpu
from tests.files import BASELINE, BROKEN, OTHERS, by_pillow, jpeg, mutated, turned

ALL = BASELINE | OTHERS | BROKEN


def as_pillow_has_it(image):
    return image.permute(1, 2, 0).numpy()


@pytest.fixture(scope="module")
def files():
    return collate(list(ALL.values()))


def test_the_table_tells_what_lies_where(files):
    kinds = [Kind.JPEG] * len(BASELINE) + [Kind.PIXELS] * len(OTHERS) + [Kind.BAD] * len(BROKEN)
    assert files.table[:, 4].tolist() == kinds
    assert files.block.dtype == torch.uint8
    assert files.table.dtype == torch.int64
    assert (files.table[:, 0] % ALIGNMENT == 0).all()
    ends = files.table[:, 0] + files.table[:, 1]
    assert (ends[: -len(BROKEN) - 1] <= files.table[1 : -len(BROKEN), 0]).all()
    assert ends.max() <= len(files.block)
    assert not files.table[-len(BROKEN) :, :2].any()
    assert len(files) == len(ALL)


def test_a_bad_file_has_the_size_of_the_first_good_image(files):
    assert files.sizes[-len(BROKEN) :].tolist() == [files.sizes[0].tolist()] * len(BROKEN)
    assert collate([b"no image", jpeg(20, 30), jpeg(40, 50)]).sizes.tolist() == [[20, 30], [20, 30], [40, 50]]
    assert collate([b"no image"] * 2).sizes.tolist() == [[0, 0]] * 2


def test_bad_files_have_no_size_beyond_the_bytes_of_a_batch():
    pixels = 3 * 20 * 30
    files = collate([jpeg(20, 30, quality=5), b"no image", b"nor this"], most_bytes=2 * pixels)
    assert files.sizes.tolist() == [[20, 30], [20, 30], [0, 0]]


def test_a_bad_file_has_the_size_that_its_targets_describe():
    boxes = BoundingBoxes([[0, 0, 1, 1]], format="XYXY", canvas_size=(50, 60))
    files, _ = collate([(jpeg(20, 30), {"boxes": boxes}), (b"no image", {"boxes": boxes})])
    assert files.sizes.tolist() == [[20, 30], [50, 60]]
    files, _ = collate([(jpeg(20, 30), 0), (b"no image", Mask(torch.zeros(1, 7, 8)))])
    assert files.sizes.tolist() == [[20, 30], [7, 8]]
    huge = BoundingBoxes([[0, 0, 1, 1]], format="XYXY", canvas_size=(10**5, 10**5))
    files, _ = collate([(jpeg(20, 30), {"boxes": boxes}), (b"no image", {"boxes": huge})], most_bytes=10**6)
    assert files.sizes.tolist() == [[20, 30], [20, 30]]


def test_files_for_the_hardware_are_as_they_were(files):
    assert [files.file(row).numpy().tobytes() for row in range(len(BASELINE))] == list(BASELINE.values())


def test_sizes_are_those_of_upright_images():
    files = collate([turned(orientation, height=20, width=30) for orientation in range(1, 9)])
    assert files.sizes.tolist() == [[20, 30]] * 4 + [[30, 20]] * 4


def test_every_bad_file_has_a_name_and_a_reason(files):
    first = len(BASELINE) + len(OTHERS)
    assert list(files.problems) == list(range(first, len(ALL)))
    assert all(files.problems.values())
    assert files.names == [f"sample {index}" for index in range(len(ALL))]
    assert repr(files).endswith(f"bytes, {len(BROKEN)} of them bad)")


def test_pixels_are_pillows_and_black_stands_for_bad_files(files):
    images, problems = decode_on_cpu(files)
    assert problems == files.problems
    assert [list(image.shape[1:]) for image in images] == files.sizes.clamp(min=1).tolist()
    for name, data, image in zip(ALL, ALL.values(), images, strict=True):
        expected = np.zeros((*files.sizes[0].tolist(), 3), np.uint8) if name in BROKEN else by_pillow(data)
        assert np.array_equal(as_pillow_has_it(image), expected), name


def test_some_rows_alone(files):
    bad = len(ALL) - 1
    images, problems = decode_on_cpu(files, [bad, 0])
    assert torch.equal(images[0], torch.zeros(3, *files.sizes[0].tolist(), dtype=torch.uint8))
    assert np.array_equal(as_pillow_has_it(images[1]), by_pillow(BASELINE["4:4:4"]))
    assert list(problems) == [bad]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_what_only_the_decoder_finds_is_a_problem_and_black(monkeypatch):
    files = collate([jpeg(), jpeg(20, 30)])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    images, problems = decode_on_cpu(files)
    assert list(problems) == [0]
    assert "2,000 are decoded" in problems[0]
    assert torch.equal(images[0], torch.zeros(3, 48, 72, dtype=torch.uint8))
    assert images[1].any()


def test_it_can_be_pickled_and_stays_on_the_cpu(files):
    other = pickle.loads(pickle.dumps(files))
    assert torch.equal(other.block, files.block)
    assert (other.names, other.problems) == (files.names, files.problems)
    assert not hasattr(files, "to")


def test_a_pickle_has_no_more_memory_than_the_files_take():
    small = collate([jpeg()])
    assert len(pickle.dumps(small)) < 2 * len(small.block) + 2000


def test_a_copy_has_the_same_block(files):
    other = copy.copy(files)
    assert other.block is files.block
    assert (other.names, other.problems) == (files.names, files.problems)


def test_no_loader_pins_it(files):
    """Of all batches that its workers are ahead; PrefetchLoader pins them in their turn."""
    assert files.pin_memory("cuda") is files


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:::PIL")
def test_two_thousand_mutated_files_are_what_pillow_makes_of_them(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2**20)
    rng = random.Random(0)
    sound = {name: data for name, data in ALL.items() if name not in {*BROKEN, "flat", "colour profile"}}
    originals = rng.choices([data for name, data in sound.items() if data[:2] == b"\xff\xd8"], k=2000)
    neighbour = by_pillow(jpeg())
    refused = 0
    for start in range(0, len(originals), 50):
        files = [mutated(data, rng) for data in originals[start : start + 50]]
        images, problems = decode_on_cpu(collate([file for mutant in files for file in (mutant, jpeg())]))
        for row, file in enumerate(files):
            expected = by_pillow(file)
            assert (2 * row in problems) == (expected is None)
            assert expected is None or np.array_equal(as_pillow_has_it(images[2 * row]), expected)
            assert np.array_equal(as_pillow_has_it(images[2 * row + 1]), neighbour)
        assert all(problems.values())
        assert all(row % 2 == 0 for row in problems)
        refused += len(problems)
    assert 200 < refused < 1800  # both ends are exercised
