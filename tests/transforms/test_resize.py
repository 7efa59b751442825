"""Resize, against torchvision's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import InterpolationMode, v2

from fastload.transforms.resize import Resize
from tests.counts import examples
from tests.kernels.whole import batches, resized_crop, stored
from tests.transforms.draws import DEVICES, KEY, RESAMPLED, assert_becomes, images, sizes_of

F = v2.functional
SIDES = st.integers(1, 40)


@given(
    height=st.integers(1, 10_000),
    width=st.integers(1, 10_000),
    size=st.one_of(st.none(), st.integers(1, 1_000)),
    more=st.one_of(st.none(), st.integers(1, 1_000)),
)
@examples(full=500, here=100)
def test_sizes_are_torchvisions(height, width, size, more):
    longest = more if size is None or more is None else size + more
    if size is None and longest is None:
        return
    ours = Resize(size, max_size=longest).sample(torch.tensor([[height, width]]), KEY)[0].tolist()
    given = None if size is None else [size]
    theirs = F._geometry._compute_resized_output_size((height, width), given, longest)
    assert ours == [max(1, side) for side in theirs]  # torchvision's may be 0, which it cannot resize to


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@examples(full=500, here=100)
@given(batch=batches(largest=40), size=st.one_of(st.integers(1, 12), st.tuples(SIDES, SIDES)))
def test_resized_images_are_torchvisions(device, interpolation, batch, size):
    resize = Resize(size, interpolation)
    becomes = resize.sample(sizes_of(batch), KEY)[0].tolist()
    expected = [resized_crop(image, (0, 0, *batch.shape[2:]), becomes, interpolation) for image in batch]
    assert_becomes(resize, batch, expected, device, RESAMPLED)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [(30, 35), (90, 70)])
def test_bytes_are_clipped_after_each_axis_as_torchvision_and_pillow_do(device, size):
    noise = torch.randint(0, 2, (3, 60, 50), generator=torch.Generator().manual_seed(0), dtype=torch.uint8) * 255
    bicubic = InterpolationMode.BICUBIC
    pillows = F.resize(F.resize(F.to_pil_image(noise), (60, size[1]), bicubic), size, bicubic)  # along rows first
    ours = Resize(size, "bicubic")(noise.to(device)).cpu()
    for theirs in (F.resize(noise, size, bicubic), F.pil_to_tensor(pillows)):
        torch.testing.assert_close(ours.int(), theirs.int(), atol=1, rtol=0)
    as_floats = Resize(size, "bicubic")(noise.to(device) / 255)
    assert as_floats.min() < 0
    assert as_floats.max() > 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    ("size", "interpolation"), [((256,), "bilinear"), ((256,), "bicubic"), ((7000, 9000), "bilinear")]
)
def test_a_huge_image_is_torchvisions(dtype, size, interpolation):
    """Torchvision's on the CPU, whose errors do not grow with the image."""
    image = stored(images(3, 6000, 8000), dtype)
    full, rounding = (255, 0.5 / 255) if dtype is torch.uint8 else (1, 0)
    expected = F.resize(image.float() / full, list(size), InterpolationMode(interpolation))
    actual = Resize(size, interpolation)(image.cuda()).cpu() / full
    torch.testing.assert_close(actual.clamp(0, 1), expected.clamp(0, 1), atol=RESAMPLED + rounding, rtol=0)


def test_images_of_different_sizes_stay_different():
    listed = [images(3, 20, 30), images(3, 40, 25)]
    resized = Resize(16)(listed)
    for image, result in zip(listed, resized, strict=True):
        torch.testing.assert_close(result, F.resize(image, [16]), atol=1e-3, rtol=0)


def test_resize_says_what_it_is():
    assert repr(Resize(256)) == "Resize(256, 'bilinear')"
    assert repr(Resize([8, 9], InterpolationMode.BICUBIC)) == "Resize((8, 9), 'bicubic')"
    assert repr(Resize([256], max_size=400)) == "Resize(256, 'bilinear', max_size=400)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Resize(0), "size must be a positive int.*got 0"),
        (lambda: Resize(None), "max_size must be an int where size is None; got None"),
        (lambda: Resize(8, max_size=8), "max_size must be above size, 8; got 8"),
        (lambda: Resize(8, max_size=-1), "max_size must be an int of at least 1; got -1"),
        (lambda: Resize((8, 9), max_size=10), r"max_size must be None .*got 10 and \(8, 9\)"),
        (lambda: Resize(8, "area"), "interpolation must be one of.*got 'area'"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_got(make, message):
    with pytest.raises(ValueError, match=message):
        make()
