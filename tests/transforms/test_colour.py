"""Colour transforms, against torchvision's."""

from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2

from fastload.kernels.spec import Op
from fastload.transforms import Compose, Normalize, RandomResizedCrop
from fastload.transforms.colour import (
    ColorJitter,
    Grayscale,
    RandomAutocontrast,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from tests.counts import examples
from tests.kernels.whole import batches
from tests.transforms.draws import (
    DEVICES,
    KEY,
    KEYS,
    POINTWISE,
    assert_becomes,
    assert_parameters_follow_the_sample,
    assert_same_distribution,
    assert_share,
    images,
    sizes,
    sizes_of,
)

F = v2.functional
JITTER = {"brightness": 0.4, "contrast": (0.2, 3.0), "saturation": 1.5, "hue": 0.3}
FUNCTIONS = {
    Op.BRIGHTNESS: F.adjust_brightness,
    Op.CONTRAST: F.adjust_contrast,
    Op.SATURATION: F.adjust_saturation,
    Op.HUE: F.adjust_hue,
}
ONE_OPERATION = [  # made of a probability, and of a number from 0 to 1 where there is something to choose
    (lambda p, _: RandomGrayscale(p), lambda image, _: F.rgb_to_grayscale(image, image.shape[-3])),
    (lambda p, _: RandomInvert(p), lambda image, _: F.invert(image)),
    (lambda p, _: RandomAutocontrast(p), lambda image, _: F.autocontrast(image)),
    (lambda p, part: RandomPosterize(round(8 * part), p), lambda image, part: F.posterize(image, round(8 * part))),
    (lambda p, part: RandomSolarize(part, p), F.solarize),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("make", "function"), ONE_OPERATION)
@examples(full=500, here=100)
@given(batch=batches(largest=40), part=st.floats(0, 1, width=32), key=KEYS)
def test_those_drawn_are_changed_as_torchvision_does(device, make, function, batch, part, key):
    transform = make(0.7, part)
    drawn = transform.sample(sizes_of(batch), key)
    expected = [function(image, part) if chosen else image for image, chosen in zip(batch, drawn, strict=True)]
    assert_becomes(transform, batch, expected, device, key=key)


@pytest.mark.parametrize(
    ("transform", "theirs"),
    [
        (RandomSolarize(77, p=1.0), v2.RandomSolarize(77, p=1.0)),
        (RandomSolarize(76.5, p=1.0), v2.RandomSolarize(76.5, p=1.0)),
        (RandomSolarize(0, p=1.0), v2.RandomSolarize(0, p=1.0)),
        *((RandomPosterize(bits, p=1.0), v2.RandomPosterize(bits, p=1.0)) for bits in range(9)),
        (RandomInvert(p=1.0), v2.RandomInvert(p=1.0)),
    ],
)
def test_every_level_of_uint8_becomes_torchvisions(transform, theirs):
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert torch.equal(transform(levels), theirs(levels))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("transform", "theirs"),
    [
        (RandomAutocontrast(1.0), lambda level: level),
        (RandomSolarize(77, 1.0), lambda level: 255 - level if level >= 77 else level),
        (RandomPosterize(2, 1.0), lambda level: level // 64 * 64),
    ],
)
def test_areas_of_one_level_stay_so_behind_a_resize(device, dtype, transform, theirs):
    """Rounding errors of the resize do not decide on which side of a step a value is, and are not stretched."""
    areas = torch.arange(256, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 40, 40).to(device)
    recipe = Compose([RandomResizedCrop(24), transform, Normalize([0.0], [1.0], dtype=dtype)])
    expected = torch.tensor([theirs(level) for level in range(256)]).view(-1, 1, 1, 1) / 255
    # A thousandth is what kernels may lose in float16; values of half precision are rounded twice.
    tolerance = 1e-3 + torch.finfo(dtype).eps
    torch.testing.assert_close(recipe(areas, KEY).float().cpu(), expected.expand(-1, 3, 24, 24), atol=tolerance, rtol=0)


@pytest.mark.parametrize("operation", [RandomSolarize(0.5, 1.0), RandomPosterize(2, 1.0), RandomAutocontrast(1.0)])
def test_normalised_values_are_floats(operation):
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    normalize = Normalize([0.0], [1.0])
    expected = operation(normalize(levels))
    torch.testing.assert_close(Compose([normalize, operation])(levels), expected, atol=POINTWISE, rtol=0)


@pytest.mark.parametrize("make", [make for make, _ in ONE_OPERATION])
def test_draws_follow_the_sample_and_the_probability(make):
    assert_parameters_follow_the_sample(make(0.5, 0.5))
    assert_share(make(0.3, 0.5).sample(sizes(20_000, 5, 7), KEY), 0.3)


@pytest.mark.parametrize("device", DEVICES)
@examples(full=500, here=100)
@given(batch=batches(largest=40, channels=(3,)))
def test_grayscale_keeps_its_channels(device, batch):
    assert_becomes(Grayscale(), batch, F.rgb_to_grayscale(batch, 3), device)


def jittered(batch, ops):
    """What torchvision makes of a batch by each image's operations, in its order."""
    for image, rows in zip(batch, ops.tolist(), strict=True):
        changed = image
        for code, amount in rows:
            changed = FUNCTIONS[Op(int(code))](changed, amount)
        yield changed


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("asked", [*FUNCTIONS, None])
@examples(full=500, here=100)
@given(batch=batches(largest=40), factor=st.floats(0, 2), turns=st.floats(0, 0.5), key=KEYS)
def test_color_jitter_is_torchvisions_in_each_images_own_order(device, asked, batch, factor, turns, key):
    amounts = {op.name.lower(): turns if op is Op.HUE else factor for op in FUNCTIONS if asked in (op, None)}
    jitter = ColorJitter(**amounts)
    assert_becomes(jitter, batch, jittered(batch, jitter.sample(sizes_of(batch), key)), device, key=key)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("transform", "function"),
    [
        (Grayscale(), lambda image: F.rgb_to_grayscale(image, 3)),
        (RandomInvert(1.0), F.invert),
        (RandomAutocontrast(1.0), F.autocontrast),
        (RandomPosterize(3, 1.0), lambda image: F.posterize(image, 3)),
        (RandomSolarize(0.6, 1.0), lambda image: F.solarize(image, 0.6)),
    ],
)
def test_huge_images_are_changed_as_torchvision_does(transform, function):
    image = images(3, 6000, 8000).cuda()
    torch.testing.assert_close(transform(image), function(image), atol=POINTWISE, rtol=0)


@pytest.mark.gpu
def test_huge_images_are_jittered_as_torchvision_does():
    batch = images(2, 3, 6000, 8000).cuda()
    jitter = ColorJitter(**JITTER)
    ours = jitter(batch, KEY)
    for image, expected in zip(ours, jittered(batch, jitter.sample(sizes_of(batch), KEY)), strict=True):
        torch.testing.assert_close(image, expected, atol=POINTWISE, rtol=0)


def test_color_jitter_draws_torchvisions_factors_in_every_order():
    torch.manual_seed(0)
    ops = ColorJitter(**JITTER).sample(sizes(12_000, 5, 7), KEY)
    theirs = v2.ColorJitter(**JITTER)
    params = [theirs.make_params([]) for _ in range(2_000)]
    for op in FUNCTIONS:
        amounts = ops[ops[..., 0] == op][:, 1]
        assert len(amounts) == len(ops)
        assert_same_distribution(amounts, [each[f"{op.name.lower()}_factor"] for each in params])
    codes = [tuple(row) for row in ops[..., 0].long().tolist()]
    for order in permutations(FUNCTIONS):
        assert_share(torch.tensor([row == order for row in codes]), 1 / 24)


@pytest.mark.parametrize("asked", [{}, {"hue": 0.1}, {"brightness": 0.1, "contrast": 0}, JITTER])
def test_color_jitter_does_what_is_asked_for_and_no_more(asked):
    jitter = ColorJitter(**asked)
    ops = jitter.sample(sizes(5, 8, 8), KEY)
    wanted = {Op[name.upper()] for name, value in asked.items() if value}
    assert all(set(row) == wanted for row in ops[..., 0].tolist())
    if wanted:
        assert_parameters_follow_the_sample(jitter)
    else:
        batch = images(5, 3, 8, 8)
        assert torch.equal(jitter(batch, KEY), batch)


def test_colour_transforms_say_what_they_are():
    assert repr(ColorJitter(2, hue=0.1)) == "ColorJitter(brightness=(0.0, 3.0), hue=(-0.1, 0.1))"
    assert repr(RandomSolarize(128)) == "RandomSolarize(128.0, p=0.5)"
    assert repr(RandomPosterize(4, 0.1)) == "RandomPosterize(4, p=0.1)"
    assert repr(RandomGrayscale()) == "RandomGrayscale(p=0.1)"
    assert repr(Grayscale()) == "Grayscale(3)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ColorJitter(brightness=-0.1), "brightness must be at least 0; got -0.1"),
        (lambda: ColorJitter(contrast=(-1, 1)), r"contrast must be \(low, high\) with 0 <=.*got \(-1, 1\)"),
        (lambda: ColorJitter(hue=0.6), r"hue must be from 0 to 0.5; got 0.6"),
        (lambda: ColorJitter(saturation=(1, 2, 3)), r"saturation must be two numbers.*got \(1, 2, 3\)"),
        (lambda: RandomSolarize(300), "threshold must be from 0 to 255; got 300"),
        (lambda: RandomPosterize(9), "bits must be an int from 0 to 8; got 9"),
        (lambda: Grayscale(1), "num_output_channels must be 3; got 1"),
        (lambda: RandomInvert(2), "p must be a probability.*got 2"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_got(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
