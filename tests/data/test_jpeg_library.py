"""Both libraries decode to Pillow's pixels, and say so when they cannot."""

import numpy as np
import pytest
import torch

from fastload.data.jpeg_library import library_decoder, torchvision_decode
from tests.files import BASELINE, BROKEN, by_pillow

CPU = torch.device("cpu")


def encoded(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
@pytest.mark.parametrize("decode", [library_decoder(), torchvision_decode])
def test_their_pixels_are_pillows(decode):
    images = decode([encoded(data) for data in BASELINE.values()], CPU)
    for name, image in zip(BASELINE, images, strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), by_pillow(BASELINE[name])), name
    with pytest.raises(RuntimeError):
        decode([encoded(BROKEN["truncated"])], CPU)
