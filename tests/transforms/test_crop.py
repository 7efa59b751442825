"""Crops, against torchvision's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import InterpolationMode, v2

from fastload.transforms.crop import CenterCrop, RandomCrop, RandomResizedCrop
from tests.counts import examples
from tests.kernels.whole import batches, resized_crop, stored
from tests.transforms.draws import (
    DEVICES,
    KEY,
    KEYS,
    MOVED,
    RESAMPLED,
    assert_becomes,
    assert_parameters_follow_the_sample,
    assert_same_distribution,
    images,
    sizes,
    sizes_of,
)

F = v2.functional
SIDES, BORDERS = st.integers(1, 40), st.integers(0, 5)
DRAWS = 4_000


def torchvision_boxes(transform, height, width):
    image = torch.empty(1, height, width)
    drawn = [transform.make_params([image]) for _ in range(DRAWS)]
    return torch.tensor([[box[side] for side in ("top", "left", "height", "width")] for box in drawn])


@pytest.mark.parametrize("transform", [RandomResizedCrop(8), RandomCrop(8, padding=2)])
def test_boxes_follow_the_sample(transform):
    assert_parameters_follow_the_sample(transform)


@pytest.mark.parametrize(("height", "width"), [(375, 500), (30, 300), (7, 5), (1, 1000)])
@pytest.mark.parametrize("arguments", [{}, {"scale": (0.3, 1.5), "ratio": (0.2, 1.0)}])
def test_random_resized_crop_draws_torchvisions_boxes(height, width, arguments):
    torch.manual_seed(0)
    theirs = torchvision_boxes(v2.RandomResizedCrop(224, **arguments), height, width)
    ours = RandomResizedCrop(224, **arguments).sample(sizes(DRAWS, height, width), KEY)
    for column in range(4):
        assert_same_distribution(ours[:, column], theirs[:, column])
    assert_same_distribution(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3])
    assert_same_distribution(ours[:, 0] + ours[:, 2], theirs[:, 0] + theirs[:, 2])


@given(
    height=st.integers(1, 10_000),
    width=st.integers(1, 10_000),
    scale=st.tuples(st.floats(0, 1), st.floats(0, 2)).map(sorted),
    ratio=st.tuples(st.floats(0.01, 1), st.floats(0.5, 100)).map(sorted),
    seed=st.integers(0, 2**31),
)
@examples(full=300, here=60)
def test_a_box_lies_in_its_image(height, width, scale, ratio, seed):
    key = type(KEY)(seed=seed)
    boxes = RandomResizedCrop(8, scale, ratio).sample(sizes(4, height, width), key)
    assert boxes.dtype == torch.int32
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= torch.tensor([height, width])).all()


@given(height=st.integers(1, 2_000), width=st.integers(1, 2_000))
@examples(full=200, here=40)
def test_where_no_box_fits_the_centre_is_taken(height, width):
    never = {"scale": (9.0, 9.0), "ratio": (0.8, 1.2)}
    theirs = v2.RandomResizedCrop(8, **never).make_params([torch.empty(1, height, width)])
    ours = RandomResizedCrop(8, **never).sample(sizes(1, height, width), KEY)[0].tolist()
    assert ours == [theirs[side] for side in ("top", "left", "height", "width")]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest", InterpolationMode.BICUBIC])
@examples(full=500, here=100)
@given(batch=batches(largest=40), size=st.tuples(SIDES, SIDES), key=KEYS)
def test_random_resized_crop_resizes_as_torchvision(device, interpolation, batch, size, key):
    crop = RandomResizedCrop(size, interpolation=interpolation)
    boxes = crop.sample(sizes_of(batch), key).tolist()
    expected = [resized_crop(image, box, size, crop.interpolation) for image, box in zip(batch, boxes, strict=True)]
    assert_becomes(crop, batch, expected, device, RESAMPLED, key)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
def test_crops_of_huge_images_are_torchvisions(dtype, interpolation):
    """Torchvision's on the CPU, whose errors do not grow with the image."""
    batch = stored(images(2, 3, 6000, 8000), dtype)
    full, rounding = (255, 0.5 / 255) if dtype is torch.uint8 else (1, 0)
    crop = RandomResizedCrop(224, scale=(0.5, 1.0), interpolation=interpolation)
    boxes = crop.sample(sizes_of(batch), KEY).tolist()
    expected = [resized_crop(image, box, (224, 224), interpolation) for image, box in zip(batch, boxes, strict=True)]
    for ours, theirs in zip(crop(batch.cuda(), KEY).cpu() / full, expected, strict=True):
        torch.testing.assert_close(ours.clamp(0, 1), theirs.clamp(0, 1), atol=RESAMPLED + rounding, rtol=0)


def test_images_of_different_sizes_become_one_batch():
    listed = [images(3, 20 + i, 50 - i, seed=i) for i in range(4)]
    crop = RandomResizedCrop(16)
    boxes = crop.sample(torch.tensor([image.shape[1:] for image in listed]), KEY).tolist()
    expected = [F.resized_crop(image, *box, [16, 16]) for image, box in zip(listed, boxes, strict=True)]
    torch.testing.assert_close(crop(listed, KEY), torch.stack(expected), atol=RESAMPLED, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ({"size": 8, "padding": 4}, (8, 8)),
        ({"size": (8, 12), "padding": (1, 3)}, (9, 20)),
        ({"size": 8, "padding": (1, 2, 3, 4), "fill": 0.5}, (6, 8)),
        ({"size": (30, 4), "pad_if_needed": True}, (7, 9)),
        ({"size": 8}, (8, 11)),
    ],
)
def test_random_crop_is_torchvisions(arguments, size):
    torch.manual_seed(0)
    image = images(3, *size)
    theirs = v2.RandomCrop(**arguments)
    crop = RandomCrop(**arguments)
    drawn = crop.sample(sizes(DRAWS, *size), KEY)
    params = [theirs.make_params([image]) for _ in range(DRAWS)]
    for column, (side, edge) in enumerate((("top", 1), ("left", 0))):
        assert_same_distribution(drawn[:, column], [each[side] - each["padding"][edge] for each in params])
    for place, box in enumerate(drawn[:8].tolist()):
        left, top, right, bottom = params[0]["padding"]
        padded = F.pad(image, [left, top, right, bottom], fill=arguments.get("fill", 0))
        expected = F.crop(padded, box[0] + top, box[1] + left, *box[2:])
        assert torch.equal(crop(image[None], KEY.advanced(place))[0], expected)


@pytest.mark.parametrize("device", DEVICES)
@examples(full=500, here=100)
@given(
    batch=batches(),
    size=st.tuples(SIDES, SIDES),
    padding=st.one_of(BORDERS, st.tuples(BORDERS, BORDERS), st.tuples(*[BORDERS] * 4)),
    fill=st.floats(0, 1, width=32),
    key=KEYS,
)
def test_random_crop_pads_and_cuts_as_torchvision(device, batch, size, padding, fill, key):
    crop = RandomCrop(size, padding, pad_if_needed=True, fill=fill)
    boxes = crop.sample(sizes_of(batch), key).tolist()
    border = max(*size, 2 * 5)  # of pixels, which no box reaches beyond
    padded = F.pad(batch, [border], fill=fill)
    expected = [
        F.crop(image, top + border, left + border, height, width)
        for image, (top, left, height, width) in zip(padded, boxes, strict=True)
    ]
    assert_becomes(crop, batch, expected, device, MOVED[device], key)


@pytest.mark.parametrize("device", DEVICES)
@examples(full=500, here=100)
@given(batch=batches(largest=40), cut=st.tuples(SIDES, SIDES))
def test_center_crop_is_torchvisions(device, batch, cut):
    assert_becomes(CenterCrop(cut), batch, F.center_crop(batch, list(cut)), device, MOVED[device])


def test_an_empty_batch_draws_nothing():
    empty = torch.empty(0, 2, dtype=torch.int64)
    for crop in (RandomResizedCrop(8), RandomCrop(8), CenterCrop(8)):
        assert crop.sample(empty, KEY).shape == (0, 4)


def test_crops_say_what_they_are():
    assert (
        repr(RandomResizedCrop(8)) == "RandomResizedCrop((8, 8), (0.08, 1.0), (0.75, 1.3333333333333333), 'bilinear')"
    )
    assert repr(RandomCrop(8, 4)) == "RandomCrop((8, 8), padding=(4, 4, 4, 4), pad_if_needed=False, fill=0.0)"
    assert repr(CenterCrop((8, 9))) == "CenterCrop((8, 9))"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomResizedCrop(0), r"size must be a positive int, or \(height, width\) of two; got 0"),
        (lambda: RandomResizedCrop((1, 2, 3)), r"got \(1, 2, 3\)"),
        (lambda: RandomResizedCrop(8, scale=0.5), "scale must be two numbers .*got 0.5"),
        (lambda: RandomResizedCrop(8, scale=(0.5, 0.1)), r"0 <= low <= high <= inf; got \(0.5, 0.1\)"),
        (lambda: RandomResizedCrop(8, ratio=(0, 1)), r"ratio must be .*got \(0, 1\)"),
        (lambda: RandomResizedCrop(8, interpolation="lanczos"), "must be one of .*'nearest'.*got 'lanczos'"),
        (lambda: RandomCrop(8, padding=-1), "padding must be an int of at least 0; got -1"),
        (lambda: RandomCrop(8, padding=(1, 2, 3)), r"2 or 4 of them.*got \(1, 2, 3\)"),
        (lambda: RandomCrop(8, padding_mode="edge"), "padding_mode must be 'constant'; got 'edge'"),
        (
            lambda: RandomCrop(8, padding=1).sample(torch.tensor([[8, 8], [4, 5]]), KEY),
            r"image 1 is \(6, 7\) with its padding",
        ),
        (lambda: CenterCrop(-3), "got -3"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_got(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
