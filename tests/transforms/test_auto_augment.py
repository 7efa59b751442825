"""RandAugment, TrivialAugmentWide and ThreeAugment, against torchvision's."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import InterpolationMode, v2

from fastload.kernels.spec import Op
from fastload.transforms import Compose, RandomResizedCrop
from fastload.transforms.auto_augment import (
    Augmentation,
    RandAugment,
    ThreeAugment,
    TrivialAugmentWide,
    inverse_matrices,
)
from tests.counts import examples
from tests.kernels.whole import assert_nearest, batches
from tests.transforms.draws import (
    DEVICES,
    KEY,
    KEYS,
    POINTWISE,
    RESAMPLED,
    assert_becomes,
    assert_parameters_follow_the_sample,
    assert_same_distribution,
    assert_share,
    images,
    sizes,
    sizes_of,
)

F = v2.functional
GEOMETRIC = range(Augmentation.SHEAR_X, Augmentation.ROTATE + 1)
THRESHOLDS = {  # behind which a difference by rounding may be one of a whole step
    Augmentation.POSTERIZE,
    Augmentation.SOLARIZE,
    Augmentation.AUTO_CONTRAST,
    Augmentation.EQUALIZE,
}
FILLS = st.sampled_from([None, 0.0, 0.25, 1.0])
INTERPOLATIONS = st.sampled_from(["nearest", "bilinear"])
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
            matrix = torch.from_numpy(
                inverse_matrices(np.array([augmentation]), np.array([magnitude]), np.array([size]))
            )
            grid = F._geometry._affine_grid(matrix.view(1, 2, 3), size[1], size[0], size[1], size[0])
            ours = F._geometry._apply_grid_transform(image, grid, "bilinear", fill=None)
            expected = applied(image, augmentation, magnitude, "bilinear")
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


def augmented(image, augmentations, magnitudes, recipe):
    """What torchvision makes of an image by one augmentation after another."""
    for augmentation, magnitude in zip(augmentations, magnitudes, strict=True):
        image = applied(image, augmentation, magnitude, recipe.interpolation, recipe.fill.images)
    return image


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "recipes",
    [
        st.builds(RandAugment, st.just(1), st.integers(0, 30), interpolation=INTERPOLATIONS, fill=FILLS),
        st.builds(TrivialAugmentWide, interpolation=INTERPOLATIONS, fill=FILLS),
    ],
)
@examples(full=500, here=100)
@given(data=st.data(), batch=batches(), key=KEYS)
def test_one_augmentation_is_torchvisions(device, recipes, data, batch, key):
    recipe = data.draw(recipes)
    drawn = recipe.sample(sizes_of(batch), key)
    augmentations, magnitudes = drawn.augmentations[:, 0].numpy(), drawn.magnitudes[:, 0].numpy()
    matrices = torch.from_numpy(inverse_matrices(augmentations, magnitudes, sizes_of(batch).numpy()))
    result = recipe(batch.to(device), key).cpu()
    for n, (augmentations, magnitudes) in enumerate(
        zip(drawn.augmentations.tolist(), drawn.magnitudes.tolist(), strict=True)
    ):
        expected = augmented(batch[n], augmentations, magnitudes, recipe)
        geometric = augmentations[0] in GEOMETRIC
        if geometric and recipe.interpolation == "nearest":
            for warped in (result[n], expected):
                assert_nearest(warped[None], batch[n : n + 1], matrices[n], recipe.fill.images)
        else:
            tolerance = RESAMPLED if geometric else POINTWISE
            torch.testing.assert_close(result[n], expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("before", "magnitudes"),
    [([], range(31)), ([RandomResizedCrop(6)], range(0, 31, 5))],
    ids=["alone", "behind a resize"],
)
def test_every_level_of_uint8_becomes_torchvisions(device, before, magnitudes):
    levels = torch.arange(256, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 6, 6).to(device)
    for magnitude in magnitudes:
        recipe = RandAugment(1, magnitude)
        drawn = recipe.sample(sizes_of(levels), KEY.for_draw(len(before)))
        for level, ours in enumerate(Compose([*before, recipe])(levels, KEY)):
            if (augmentation := drawn.augmentations[level].item()) in THRESHOLDS:
                expected = applied(levels[level], augmentation, drawn.magnitudes[level].item())
                assert torch.equal(ours, expected), (Augmentation(augmentation).name, magnitude, level)


@pytest.mark.parametrize("device", DEVICES)
@examples(full=500, here=100)
@given(
    batch=batches(),
    recipe=st.builds(RandAugment, st.just(3), st.integers(0, 30), interpolation=st.just("bilinear"), fill=FILLS),
    key=KEYS,
)
def test_augmentations_follow_each_other(device, batch, recipe, key):
    drawn = recipe.sample(sizes_of(batch), key)
    result = recipe(batch.to(device), key).cpu()
    for image, ours, augmentations, magnitudes in zip(
        batch, result, drawn.augmentations.tolist(), drawn.magnitudes.tolist(), strict=True
    ):
        if THRESHOLDS.isdisjoint(augmentations[1:]):
            expected = augmented(image, augmentations, magnitudes, recipe)
            torch.testing.assert_close(ours, expected, atol=RESAMPLED, rtol=0)


def test_an_image_does_not_depend_on_those_beside_it():
    batch = images(12, 3, 24, 36)
    recipe = RandAugment()
    whole = recipe(batch, KEY)
    for place in range(12):
        assert torch.equal(recipe(batch[place : place + 1], KEY.advanced(place))[0], whole[place])


@pytest.mark.parametrize("device", DEVICES)
@examples(full=500, here=100)
@given(batch=batches(smallest=7), key=KEYS)
def test_three_augment_is_one_of_three_and_then_jitter(device, batch, key):
    recipe = ThreeAugment()
    sigmas, ops = recipe.sample(sizes_of(batch), key)
    functions = {
        Op.NONE: lambda image, _: image,
        Op.GRAYSCALE: lambda image, _: F.rgb_to_grayscale(image, len(image)),
        Op.SOLARIZE: lambda image, _: F.solarize(image, 0.5),
        Op.BRIGHTNESS: F.adjust_brightness,
        Op.CONTRAST: F.adjust_contrast,
        Op.SATURATION: F.adjust_saturation,
    }
    expected = []
    for image, sigma, rows in zip(batch, sigmas.tolist(), ops.tolist(), strict=True):
        changed = F.gaussian_blur(image, [13, 13], sigma) if sigma else image
        for code, amount in rows:
            changed = functions[Op(int(code))](changed, amount)
        expected.append(changed)
    assert_becomes(recipe, batch, expected, device, key=key)


def test_each_of_the_three_is_as_likely():
    sigmas, ops = ThreeAugment().sample(sizes(20_000, 24, 36), KEY)
    for op in (Op.GRAYSCALE, Op.SOLARIZE, Op.NONE):
        assert_share(ops[:, 0, 0] == op, 1 / 3)
    assert torch.equal(sigmas > 0, ops[:, 0, 0] == Op.NONE)
    assert ThreeAugment(color_jitter=0).sample(sizes(5, 24, 36), KEY)[1].shape == (5, 1, 2)


def test_they_say_what_they_are():
    assert repr(RandAugment()) == "RandAugment(2, 9, 31, 'nearest', fill=None)"
    assert repr(TrivialAugmentWide(interpolation="bilinear")) == "TrivialAugmentWide(31, 'bilinear', fill=None)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandAugment(0), "num_ops must be an int of at least 1; got 0"),
        (lambda: RandAugment(magnitude=31), "magnitude must be an int from 0 to 30; got 31"),
        (lambda: RandAugment(num_magnitude_bins=1), "num_magnitude_bins must be an int of at least 2; got 1"),
        (lambda: TrivialAugmentWide(interpolation="bicubic"), "one of .*'bilinear'.*got 'bicubic'"),
        (lambda: ThreeAugment(color_jitter=-1), "color_jitter must be at least 0; got -1"),
        (lambda: ThreeAugment(kernel_size=2), "must be an odd int.*got 2"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_got(make, message):
    with pytest.raises(ValueError, match=message):
        make()
