"""Crops, against torchvision's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import InterpolationMode, v2

from fastload.transforms.crop import CenterCrop, RandomCrop, RandomResizedCrop
from tests.transforms.draws import KEY, assert_parameters_follow_the_sample, assert_same_distribution, images, sizes

F = v2.functional
RESAMPLED = 1e-3  # of full scale, as far as a resampled value may lie from torchvision's
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
@settings(max_examples=300, deadline=None)
def test_a_box_lies_in_its_image(height, width, scale, ratio, seed):
    key = type(KEY)(seed=seed)
    boxes = RandomResizedCrop(8, scale, ratio).sample(sizes(4, height, width), key)
    assert boxes.dtype == torch.int32
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= torch.tensor([height, width])).all()


@given(height=st.integers(1, 2_000), width=st.integers(1, 2_000))
@settings(max_examples=200, deadline=None)
def test_where_no_box_fits_the_centre_is_taken(height, width):
    never = {"scale": (9.0, 9.0), "ratio": (0.8, 1.2)}
    theirs = v2.RandomResizedCrop(8, **never).make_params([torch.empty(1, height, width)])
    ours = RandomResizedCrop(8, **never).sample(sizes(1, height, width), KEY)[0].tolist()
    assert ours == [theirs[side] for side in ("top", "left", "height", "width")]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest", InterpolationMode.BICUBIC])
@pytest.mark.parametrize("size", [(33, 47), (1, 40), (40, 1)])
def test_random_resized_crop_resizes_as_torchvision(interpolation, size):
    batch = images(6, 3, *size)
    crop = RandomResizedCrop((20, 24), interpolation=interpolation)
    boxes = crop.sample(sizes(6, *size), KEY).tolist()
    mode = InterpolationMode(crop.interpolation)
    expected = [F.resized_crop(image, *box, [20, 24], mode) for image, box in zip(batch, boxes, strict=True)]
    torch.testing.assert_close(crop(batch, KEY), torch.stack(expected), atol=RESAMPLED, rtol=0)


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


@given(size=st.tuples(st.integers(1, 40), st.integers(1, 40)), cut=st.tuples(st.integers(1, 40), st.integers(1, 40)))
@settings(max_examples=100, deadline=None)
def test_center_crop_is_torchvisions(size, cut):
    batch = images(1, 1, *size)
    assert torch.equal(CenterCrop(cut)(batch), F.center_crop(batch, list(cut)))


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
        (lambda: RandomCrop(8, padding=-1), "not negative; got -1"),
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
