"""RandAugment, TrivialAugmentWide and ThreeAugment, against torchvision's."""

import pytest
import torch
from torchvision.transforms import InterpolationMode, v2

from fastload.kernels.work import Op
from fastload.transforms.recipes import (
    Augmentation,
    RandAugment,
    ThreeAugment,
    TrivialAugmentWide,
    inverse_matrices,
)
from tests.transforms.draws import (
    KEY,
    assert_parameters_follow_the_sample,
    assert_same_distribution,
    assert_share,
    images,
    sizes,
)

F = v2.functional
GEOMETRIC = range(Augmentation.SHEAR_X, Augmentation.ROTATE + 1)
RECIPES = [RandAugment(), RandAugment(3, magnitude=17, num_magnitude_bins=20), TrivialAugmentWide()]


def torchvision_name(augmentation):
    return Augmentation(augmentation).name.title().replace("_", "")


def applied(image, augmentation, magnitude, interpolation="nearest", fill=None):
    """What torchvision makes of an image by one augmentation."""
    recipe = v2.TrivialAugmentWide(interpolation=InterpolationMode(interpolation), fill=fill)
    return recipe._apply_image_or_video_transform(
        image, torchvision_name(augmentation), magnitude, recipe.interpolation, recipe._fill
    )


@pytest.mark.parametrize("recipe", [*RECIPES, ThreeAugment()])
def test_draws_follow_the_sample(recipe):
    assert_parameters_follow_the_sample(recipe)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_augmentation_is_as_likely_and_half_of_the_signs_are_negative(recipe):
    drawn = recipe.sample(sizes(20_000, 48, 64), KEY)
    for augmentation in Augmentation:
        chosen = drawn.augmentations == augmentation
        assert_share(chosen, 1 / 14)
        signed = Augmentation.SHEAR_X <= augmentation <= Augmentation.SHARPNESS
        moved = drawn.magnitudes[chosen & (drawn.magnitudes != 0)]
        if signed:
            assert_share(moved < 0, 0.5)
        else:
            assert (moved > 0).all()


@pytest.mark.parametrize("bins", [2, 10, 31])
@pytest.mark.parametrize("size", [(48, 64), (661, 331), (1, 1000), (330, 223)])
def test_randaugments_magnitudes_are_torchvisions(bins, size):
    for magnitude in range(bins):
        drawn = RandAugment(1, magnitude, bins).sample(sizes(300, *size), KEY)
        for augmentation in Augmentation:
            levels, _ = v2.RandAugment._AUGMENTATION_SPACE[torchvision_name(augmentation)]
            levels = levels(bins, *size)
            magnitudes = drawn.magnitudes[drawn.augmentations == augmentation].abs()
            expected = torch.tensor(0.0 if levels is None else float(levels[magnitude])).expand_as(magnitudes)
            if augmentation in (Augmentation.TRANSLATE_X, Augmentation.TRANSLATE_Y):  # by whole pixels
                magnitudes, expected = magnitudes.trunc(), expected.trunc()
            assert (magnitudes == expected).all()


@pytest.mark.parametrize("bins", [2, 10, 31])
def test_trivial_augments_magnitudes_are_torchvisions(bins):
    drawn = TrivialAugmentWide(bins).sample(sizes(20_000, 48, 64), KEY)
    for augmentation in Augmentation:
        levels, _ = v2.TrivialAugmentWide._AUGMENTATION_SPACE[torchvision_name(augmentation)]
        levels = levels(bins, 48, 64)
        magnitudes = drawn.magnitudes[drawn.augmentations == augmentation].abs()
        expected = torch.zeros(bins) if levels is None else levels
        assert set(magnitudes.tolist()) == set(expected.tolist())
        assert_same_distribution(magnitudes, expected.repeat(2_000))


@pytest.mark.parametrize("augmentation", GEOMETRIC)
@pytest.mark.parametrize("size", [(31, 44), (40, 17)])
def test_matrices_are_torchvisions(augmentation, size):
    """Bilinear interpolation is smooth, so a small difference in the map is a small one in the image."""
    image = images(1, 3, *size)
    name = torchvision_name(augmentation)
    for level in v2.TrivialAugmentWide._AUGMENTATION_SPACE[name][0](12, *size).tolist():
        for magnitude in (level, -level):
            matrix = inverse_matrices(torch.tensor([augmentation]), torch.tensor([magnitude]), torch.tensor([size]))
            grid = F._geometry._affine_grid(matrix.view(1, 2, 3), size[1], size[0], size[1], size[0])
            ours = F._geometry._apply_grid_transform(image, grid, "bilinear", fill=None)
            expected = applied(image, augmentation, magnitude, "bilinear")
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("recipe", [RandAugment(1), TrivialAugmentWide(), TrivialAugmentWide(fill=0.25)])
def test_one_augmentation_is_torchvisions(recipe):
    batch = images(200, 3, 24, 36)
    drawn = recipe.sample(sizes(200, 24, 36), KEY)
    result = recipe(batch, KEY)
    for image, ours, augmentation, magnitude in zip(
        batch, result, drawn.augmentations[:, 0].tolist(), drawn.magnitudes[:, 0].tolist(), strict=True
    ):
        expected = applied(image, augmentation, magnitude, fill=recipe.fill or None)
        differ = (ours - expected).abs().amax(0) > 1e-5
        # The nearest pixel is a matter of rounding where a point falls between two.
        assert differ.double().mean() <= (0.01 if augmentation in GEOMETRIC else 0), torchvision_name(augmentation)


def test_augmentations_follow_each_other():
    batch = images(100, 3, 24, 36)
    recipe = RandAugment(3, interpolation="bilinear")
    drawn = recipe.sample(sizes(100, 24, 36), KEY)
    result = recipe(batch, KEY)
    thresholds = (Augmentation.POSTERIZE, Augmentation.SOLARIZE, Augmentation.EQUALIZE)
    for image, ours, augmentations, magnitudes in zip(
        batch, result, drawn.augmentations.tolist(), drawn.magnitudes.tolist(), strict=True
    ):
        expected = image
        for augmentation, magnitude in zip(augmentations, magnitudes, strict=True):
            expected = applied(expected, augmentation, magnitude, "bilinear", fill=0)
        # Rounding before a threshold is a whole step after it, for the few values that lie there.
        allowed = 0.02 if any(each in thresholds for each in augmentations) else 0
        assert ((ours - expected).abs() > 1e-3).double().mean() <= allowed, augmentations


def test_an_image_does_not_depend_on_those_beside_it():
    batch = images(12, 3, 24, 36)
    recipe = RandAugment()
    whole = recipe(batch, KEY)
    for place in range(12):
        assert torch.equal(recipe(batch[place : place + 1], KEY.advanced(place))[0], whole[place])


def test_three_augment_is_one_of_three_and_then_jitter():
    batch = images(30, 3, 24, 36)
    recipe = ThreeAugment()
    sigmas, ops = recipe.sample(sizes(30, 24, 36), KEY)
    functions = {
        Op.NONE: lambda image, _: image,
        Op.GRAYSCALE: lambda image, _: F.rgb_to_grayscale(image, 3),
        Op.SOLARIZE: lambda image, _: F.solarize(image, 128 / 255),
        Op.BRIGHTNESS: F.adjust_brightness,
        Op.CONTRAST: F.adjust_contrast,
        Op.SATURATION: F.adjust_saturation,
    }
    for image, ours, sigma, rows in zip(batch, recipe(batch, KEY), sigmas.tolist(), ops.tolist(), strict=True):
        expected = F.gaussian_blur(image, [13, 13], sigma) if sigma else image
        for code, amount in rows:
            expected = functions[Op(int(code))](expected, amount)
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


def test_each_of_the_three_is_as_likely():
    sigmas, ops = ThreeAugment().sample(sizes(20_000, 24, 36), KEY)
    for op in (Op.GRAYSCALE, Op.SOLARIZE, Op.NONE):
        assert_share(ops[:, 0, 0] == op, 1 / 3)
    assert torch.equal(sigmas > 0, ops[:, 0, 0] == Op.NONE)
    assert ThreeAugment(color_jitter=0).sample(sizes(5, 24, 36), KEY)[1].shape == (5, 1, 2)


def test_they_say_what_they_are():
    assert repr(RandAugment()) == "RandAugment(2, 9, 31, 'nearest', fill=0.0)"
    assert repr(TrivialAugmentWide(interpolation="bilinear")) == "TrivialAugmentWide(31, 'bilinear', fill=0.0)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandAugment(0), "num_ops must be a positive int; got 0"),
        (lambda: RandAugment(magnitude=31), "magnitude must be an int from 0 to 30; got 31"),
        (lambda: RandAugment(num_magnitude_bins=1), "num_magnitude_bins must be an int above 1; got 1"),
        (lambda: TrivialAugmentWide(interpolation="bicubic"), "one of .*'bilinear'.*got 'bicubic'"),
        (lambda: ThreeAugment(color_jitter=-1), "must not be negative; got -1"),
        (lambda: ThreeAugment(kernel_size=2), "must be an odd int.*got 2"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_got(make, message):
    with pytest.raises(ValueError, match=message):
        make()
