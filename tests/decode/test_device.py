"""Where a batch's pixels lie on the device; here, as on a GPU, the CPU is a device like others."""

import torch

from fastload.data.collate import collate
from fastload.data.decoded_layout import DecodedLayout
from fastload.data.encoded import Kind
from fastload.decode.device import DecodeBuffer
from tests.files import OTHERS, jpeg


def buffer_of(files):
    return DecodeBuffer(files, DecodedLayout.of(files), torch.device("cpu"))


def test_what_workers_decoded_is_copied_at_once():
    sizes = [(20, 30), (7, 11), (64, 48), (1, 1)]
    files = collate([jpeg(height, width) for height, width in sizes], decode=True)
    assert len(list(buffer_of(files).runs())) == 1


def test_pixels_from_workers_come_through_whatever_lies_between():
    files = collate([OTHERS["PNG"], jpeg(), b"no image", OTHERS["PNG"], jpeg(), jpeg(), OTHERS["PNG"]])
    buffer = buffer_of(files)
    buffer.copy_pixels()
    for row, (_, _, height, width, kind) in enumerate(files.table.tolist()):
        if kind == Kind.PIXELS:
            assert torch.equal(buffer.images[row], files.file(row).view(height, width, 3).permute(2, 0, 1))
