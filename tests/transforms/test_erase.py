"""Erased boxes, against torchvision's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2

from fastload import transforms as T
from fastload.transforms.erase import RandomErasing
from tests.counts import examples
from tests.kernels.whole import batches
from tests.transforms.draws import (
    DEVICES,
    KEY,
    KEYS,
    assert_becomes,
    assert_parameters_follow_the_sample,
    assert_same_distribution,
    assert_share,
    sizes,
    sizes_of,
)

DRAWS = 4_000


@pytest.mark.parametrize(("height", "width"), [(224, 224), (12, 90), (1, 1000), (3, 3)])
@pytest.mark.parametrize("arguments", [{}, {"scale": (0.1, 1.0), "ratio": (0.1, 2.0)}])
def test_boxes_are_torchvisions(height, width, arguments):
    torch.manual_seed(0)
    theirs = v2.RandomErasing(**arguments)
    drawn = [theirs.make_params([torch.empty(1, height, width)]) for _ in range(DRAWS)]
    expected = torch.tensor([[box[side] * (box["v"] is not None) for side in "ijhw"] for box in drawn])
    expected *= (expected[:, 2:] > 0).all(1, keepdim=True)  # a box of no pixels is none
    boxes = RandomErasing(1.0, **arguments).sample(sizes(DRAWS, height, width), KEY).boxes
    for column in range(4):
        assert_same_distribution(boxes[:, column], expected[:, column])
    assert_same_distribution(boxes[:, 2] * boxes[:, 3], expected[:, 2] * expected[:, 3])


@given(
    height=st.integers(1, 5_000),
    width=st.integers(1, 5_000),
    scale=st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
    ratio=st.tuples(st.floats(0.01, 1), st.floats(0.5, 100)).map(sorted),
)
@examples(full=300, here=60)
def test_a_box_lies_in_its_image_or_is_none(height, width, scale, ratio):
    boxes = RandomErasing(1.0, scale, ratio).sample(sizes(4, height, width), KEY).boxes
    assert boxes.dtype == torch.int32
    assert (boxes >= 0).all()
    some = boxes[:, 2] > 0
    assert (boxes[~some] == 0).all()
    assert (boxes[some, 3] > 0).all()
    assert (boxes[some, :2] + boxes[some, 2:] <= torch.tensor([height, width])).all()
    assert (boxes[some, 2:] < torch.tensor([height, width])).all()


def test_draws_follow_the_sample_and_the_probability():
    assert_parameters_follow_the_sample(RandomErasing())
    assert_share(RandomErasing(0.3).sample(sizes(20_000, 64, 64), KEY).boxes[:, 2] > 0, 0.3)


@given(p=st.floats(0, 1), each=st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=40))
def test_the_probability_decides_which_images_are_erased_and_not_where(p, each):
    every = RandomErasing(1.0).sample(torch.tensor(each), KEY).boxes
    some = RandomErasing(p).sample(torch.tensor(each), KEY).boxes
    erased = KEY.uniform(len(each), RandomErasing.uniform_count)[:, -1] < p
    assert torch.equal(some, every * erased[:, None])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value", [0.0, 3, (0.5, -1, 2)])
@examples(full=500, here=100)
@given(batch=batches(channels=(3,), largest=40), key=KEYS)
def test_boxes_are_overwritten_with_the_value(device, value, batch, key):
    erasing = RandomErasing(0.9, scale=(0.02, 0.9), value=value)
    boxes = erasing.sample(sizes_of(batch), key).boxes
    filling = torch.tensor(value, dtype=torch.float32).view(-1, 1, 1)
    expected = [v2.functional.erase(image, *box, filling) for image, box in zip(batch, boxes.tolist(), strict=True)]
    assert_becomes(erasing, batch, expected, device, tolerance=0, key=key)


def test_a_value_is_in_units_of_what_it_overwrites():
    batch = torch.full((4, 3, 24, 30), 100, dtype=torch.uint8)
    assert RandomErasing(1.0, value=7)(batch, KEY).unique().tolist() == [7, 100]
    normalized = T.Compose([T.Normalize([0.5] * 3, [0.5] * 3), RandomErasing(1.0, value=7)])(batch, KEY)
    assert normalized.unique().tolist() == [pytest.approx(200 / 255 - 1, abs=1e-6), 7]


def test_random_values_are_standard_normal_and_repeat():
    batch = torch.full((16, 3, 64, 64), 9.0)
    erasing = RandomErasing(1.0, scale=(0.5, 0.5), ratio=(1, 1), value="random")
    erased = erasing(batch, KEY)
    assert torch.equal(erasing(batch, KEY), erased)
    assert torch.equal(erasing(batch[3:], KEY.advanced(3)), erased[3:])
    noise = erased[erased != 9.0].double()
    assert len(noise) == 16 * 3 * 45 * 45
    assert abs(noise.mean()) < 6 / len(noise) ** 0.5
    assert abs(noise.var() - 1) < 6 * (2 / len(noise)) ** 0.5
    assert noise.unique().numel() > 0.99 * len(noise)  # no value is another's


def test_it_says_what_it_is():
    assert repr(RandomErasing(0.25, value="random")) == "RandomErasing(0.25, (0.02, 0.33), (0.3, 3.3), 'random')"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomErasing(2), "p must be a probability.*got 2"),
        (lambda: RandomErasing(scale=(0, 2)), r"scale must be .*high <= 1; got \(0, 2\)"),
        (lambda: RandomErasing(ratio=(3, 1)), r"ratio must be .*got \(3, 1\)"),
        (lambda: RandomErasing(ratio=3), "ratio must be two numbers.*got 3"),
        (lambda: RandomErasing(value="noise"), "or 'random'; got 'noise'"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_got(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
