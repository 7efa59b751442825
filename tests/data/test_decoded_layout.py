"""Where a batch's images will lie on the device, as the worker that packs the files writes it behind them."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchvision.tv_tensors import BoundingBoxes

from fastload.data.collate import collate
from fastload.data.decoded_layout import DecodedLayout
from fastload.data.encoded import ALIGNMENT, CHANNELS, Kind
from tests.files import OTHERS, jpeg

SIDE = st.integers(1, 500)
ROWS = st.lists(
    st.tuples(st.integers(0, 2**40), st.integers(0, 2**20), SIDE, SIDE, st.sampled_from(Kind)), min_size=1, max_size=40
)


def table_of(rows):
    """Of the pixels that a worker decoded, the length follows from the size."""
    table = np.array(rows, dtype=np.int64)
    pixels = table[:, 4] == Kind.PIXELS
    table[pixels, 1] = CHANNELS * table[pixels, 2] * table[pixels, 3]
    return table


def arrays_of(layout):
    return [layout.images, *layout.jpegs.arrays, layout.jpegs.sizes]


def same(one, other):
    arrays = zip(arrays_of(one), arrays_of(other), strict=True)
    are_equal = all(mine.dtype == theirs.dtype and np.array_equal(mine, theirs) for mine, theirs in arrays)
    return are_equal and (one.size, one.decoded) == (other.size, other.decoded)


@given(ROWS)
def test_images_lie_one_after_the_other(rows):
    layout = DecodedLayout.of_table(table_of(rows))
    starts, heights, widths, channels, lines, pixels = layout.images.T
    ends = starts + (CHANNELS - 1) * channels + (heights - 1) * lines + (widths - 1) * pixels + 1
    assert (starts % ALIGNMENT == 0).all()
    assert (ends[:-1] <= starts[1:]).all()
    assert ends[-1] <= layout.size
    assert layout.decoded == sum(row[4] == Kind.PIXELS for row in rows)


@given(ROWS)
def test_the_jpegs_are_there_the_longest_first(rows):
    table = table_of(rows)
    jpegs = DecodedLayout.of_table(table).jpegs
    assert sorted(jpegs.lengths.tolist(), reverse=True) == jpegs.lengths.tolist()
    assert sorted(zip(jpegs.addresses.tolist(), jpegs.lengths.tolist(), strict=True)) == sorted(
        (offset, length) for offset, length, _, _, kind in table.tolist() if kind == Kind.JPEG
    )


def test_each_jpeg_is_decoded_to_its_image():
    files = collate([jpeg(20, 30), OTHERS["PNG"], jpeg(64, 48), b"no image", jpeg(7, 100)])
    layout = DecodedLayout.of(files)
    jpegs = layout.jpegs.moved(host=10**6, device=10**9)
    by_offset = {offset: index for index, (offset, *_, kind) in enumerate(files.table.tolist()) if kind == Kind.JPEG}
    assert len(jpegs) == len(by_offset) == 3
    for address, length, handed in zip(*(array.tolist() for array in jpegs.arrays), strict=True):
        index = by_offset[address - 10**6]
        start, _, _, plane, pitch, pixel = layout.images[index].tolist()
        assert length == files.table[index, 1]
        assert handed == [*(10**9 + start + plane * channel for channel in range(CHANNELS)), 0, *[pitch] * CHANNELS, 0]
        assert pixel == 1


def test_a_bad_file_has_the_size_that_its_targets_tell():
    """They are known when the files are packed already."""
    boxes = [BoundingBoxes([[1, 2, 3, 4]], format="XYXY", canvas_size=size) for size in ((90, 70), (20, 30))]
    files, _ = collate(list(zip([b"no image", jpeg(20, 30)], boxes, strict=True)))
    assert DecodedLayout.of(files).images[:, 1:3].tolist() == files.sizes.tolist() == [[90, 70], [20, 30]]


def test_it_is_read_as_it_was_written():
    """From the memory that a worker shares, and from a copy of it."""
    contents = [jpeg(20 + number, 30) if number % 3 else OTHERS["PNG"] for number in range(8)]
    for files in DataLoader(contents, batch_size=4, num_workers=1, collate_fn=collate):
        assert files.layout_at is not None
        worked_out = DecodedLayout.of_table(files.table.numpy())
        assert same(DecodedLayout.of(files), worked_out)
        files.block = torch.cat([files.block])
        assert same(DecodedLayout.of(files), worked_out)
        files.layout_at = None
        assert same(DecodedLayout.of(files), worked_out)
