"""Affine maps: the reference is torchvision's, and the kernel is the reference's.

The nearest pixel is not defined where a coordinate is half way between two, up to the rounding of float32: there either
is right. So nearest results are held to what the coordinates in float64 allow when moved a little either way.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional._geometry import _get_inverse_affine_matrix

from tests.counts import examples, variants
from tests.kernels.whole import (
    DTYPES,
    HERE,
    LAID_OUT,
    LAYOUTS,
    assert_copied,
    assert_nearest,
    assert_right_in_training,
    assert_torchvisions,
    batch,
    batches,
    crowds,
    each_of_crowd,
    hold_to_reference,
    kernel,
    reference,
    stored,
)

TOLERANCE = 1e-3
IDENTITY = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
ANGLES = st.one_of(st.floats(-180, 180), st.sampled_from([-90.0, 0.0, 90.0, 180.0]))
SHIFTS = st.one_of(st.floats(-30, 30), st.integers(-24, 24).map(float))
SHEARS = st.one_of(st.floats(-45, 45), st.just(0.0))
MAPS = st.tuples(ANGLES, st.tuples(SHIFTS, SHIFTS).map(list), st.floats(0.5, 2), st.tuples(SHEARS, SHEARS).map(list))
FILLS = st.sampled_from([None, 0.0, 0.4, 1.0])


def inverse(angle, translate, scale, shear):
    return _get_inverse_affine_matrix([0.0, 0.0], angle, translate, scale, shear)


@examples(full=500, here=60)
@given(images=batches(), maps=st.tuples(MAPS, MAPS, MAPS), fill=FILLS)
def test_bilinear_is_torchvisions(images, maps, fill):
    maps = maps[: len(images)]
    matrices = torch.tensor([inverse(*each) for each in maps])
    actual = reference("warp")(images, matrices, interpolation="bilinear", fill=fill)
    expected = [
        functional.affine(image, *each, interpolation=functional.InterpolationMode.BILINEAR, fill=fill)
        for image, each in zip(images, maps, strict=True)
    ]
    torch.testing.assert_close(actual, torch.stack(expected), atol=TOLERANCE, rtol=0)


@examples(full=500, here=60)
@given(images=batches(), maps=st.tuples(MAPS, MAPS, MAPS), fill=FILLS)
def test_nearest_is_torchvisions(images, maps, fill):
    maps = maps[: len(images)]
    matrices = torch.tensor([inverse(*each) for each in maps])
    expected = [functional.affine(image, *each, fill=fill) for image, each in zip(images, maps, strict=True)]
    assert_nearest(torch.stack(expected), images, matrices, fill)
    assert_nearest(reference("warp")(images, matrices, fill=fill), images, matrices, fill)


@pytest.mark.parametrize("device", HERE)
@examples(full=10, here=5)
@given(images=crowds(), maps=each_of_crowd(MAPS), fill=FILLS)
def test_the_bilinear_kernel_is_torchvisions_for_each_of_many_images(device, images, maps, fill):
    matrices = torch.tensor([inverse(*each) for each in maps])
    expected = [
        functional.affine(image, *each, interpolation=functional.InterpolationMode.BILINEAR, fill=fill)
        for image, each in zip(images, maps, strict=True)
    ]
    options = {"interpolation": "bilinear", "fill": fill, "tolerance": TOLERANCE, "device": device}
    assert_torchvisions("warp", images, matrices, expected=expected, **options)


@pytest.mark.parametrize("device", HERE)
@examples(full=10, here=5)
@given(images=crowds(), maps=each_of_crowd(MAPS), fill=FILLS)
def test_the_nearest_kernel_is_right_for_each_of_many_images(device, images, maps, fill):
    matrices = torch.tensor([inverse(*each) for each in maps])
    assert_nearest(kernel("warp")(images.to(device), matrices, fill=fill).cpu(), images, matrices, fill)


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("dtype", DTYPES)
@examples(full=20, here=4)
@given(
    images=batches(channels=(1, 3, 4)),
    maps=st.tuples(MAPS, MAPS, MAPS),
    fill=FILLS,
    laid_out=st.fixed_dictionaries(LAID_OUT),
)
def test_the_bilinear_kernel_is_right(device, dtype, images, maps, fill, laid_out):
    matrices = torch.tensor([inverse(*each) for each in maps])[: len(images)]
    options = {"interpolation": "bilinear", "fill": fill, "tolerance": TOLERANCE, "device": device, "dtype": dtype}
    hold_to_reference("warp", images, matrices, **options, **laid_out)


@pytest.mark.parametrize("device", HERE)
@examples(full=20, here=6)
@given(
    images=batches(channels=(1, 3, 4)),
    maps=st.tuples(MAPS, MAPS, MAPS),
    fill=FILLS,
    dtype=st.sampled_from([torch.uint8, torch.float32]),
    layout=st.sampled_from(list(LAYOUTS)),
)
def test_the_nearest_kernel_is_right(device, images, maps, fill, dtype, layout):
    images = LAYOUTS[layout](stored(images, dtype))
    matrices = torch.tensor([inverse(*each) for each in maps])[: len(images)]
    actual = kernel("warp")(images.to(device), matrices, fill=fill).cpu()
    assert_nearest(actual, images / 255 if dtype is torch.uint8 else images, matrices, fill)


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize(("interpolation", "fill"), variants(["nearest", "bilinear"], [None, 0.3], ways=1))
def test_the_identity_copies(device, interpolation, fill):
    images, matrices = batch(2, 3, 9, 140, "noise", seed=0), torch.tensor([IDENTITY] * 2)
    assert_copied("warp", images, matrices, interpolation=interpolation, fill=fill, device=device)


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_an_image_moved_out_of_sight_leaves_the_fill(device, interpolation):
    matrices = torch.tensor([[1.0, 0.0, 1e6, 0.0, 1.0, 0.0]])
    images = batch(1, 3, 5, 7, "noise", seed=0)
    for warp in (reference("warp"), kernel("warp")):
        warped = warp(images.to(device), matrices, interpolation=interpolation, fill=0.5)
        assert (warped == 0.5).all()


@pytest.mark.parametrize("device", HERE)
def test_an_empty_batch_stays_empty(device):
    for warp in (reference("warp"), kernel("warp")):
        assert warp(torch.empty(0, 3, 8, 8, device=device), torch.empty(0, 6)).shape == (0, 3, 8, 8)


@pytest.mark.gpu
def test_a_batch_as_in_training_is_right_every_time():
    matrices = torch.tensor([inverse(angle, [angle, 3.0], 1.1, [5.0, 0.0]) for angle in range(-32, 32)])
    assert_right_in_training("warp", matrices, interpolation="bilinear", tolerance=TOLERANCE)
