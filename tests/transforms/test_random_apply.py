"""Transforms with a probability, drawn for each image."""

import pytest
import torch
from torchvision import tv_tensors

import fastload as fl
from fastload import transforms as T
from fastload.transforms import Key
from tests.transforms.draws import assert_share

MANY = 2000
SMALL = torch.arange(3 * 8 * 8, dtype=torch.uint8).reshape(1, 3, 8, 8)

# Each transform that can be in a container.
ALONE = [
    T.CenterCrop(4),
    T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    T.GaussianBlur(3),
    T.Grayscale(),
    T.RandAugment(),
    T.RandomAdjustSharpness(2.0, 1.0),
    T.RandomAutocontrast(1.0),
    T.RandomCrop(6, padding=2),
    T.RandomEqualize(1.0),
    T.RandomErasing(1.0),
    T.RandomGrayscale(1.0),
    T.RandomHorizontalFlip(1.0),
    T.RandomInvert(1.0),
    T.RandomPosterize(2, 1.0),
    T.RandomResizedCrop(5),
    T.RandomResizedCrop((5, 7), interpolation="bicubic"),
    T.RandomSolarize(100, 1.0),
    T.RandomVerticalFlip(1.0),
    T.Resize(6),
    T.ThreeAugment(kernel_size=3),
    T.TrivialAugmentWide(),
]
WITHIN = [
    lambda transform, p: T.RandomApply([transform], p),
    lambda transform, p: T.RandomApply([T.Compose([transform])], p),
    lambda transform, p: T.RandomApply([T.RandomApply([transform], 1.0)], p),
    lambda transform, p: T.RandomChoice([transform, T.Compose([])], [p, 1 - p]),
]


def changed(images, original):
    """Which images differ from the original."""
    return (images != original).flatten(1).any(1)


def noise(count, seed=0):
    return torch.randint(0, 256, (count, 3, 8, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


@pytest.mark.parametrize("within", WITHIN, ids=["applied", "composed", "twice", "chosen"])
@pytest.mark.parametrize("transform", ALONE, ids=lambda transform: type(transform).__name__)
def test_an_image_that_is_not_chosen_keeps_every_bit(transform, within):
    images = noise(4)
    assert torch.equal(within(transform, 0.0)(images), images)


@pytest.mark.parametrize("transform", ALONE, ids=lambda transform: type(transform).__name__)
def test_an_image_that_is_chosen_is_transformed_as_alone(transform):
    images, key = noise(4), Key(seed=3)
    alone = transform(images, key.for_draw(1))  # the first draw is the container's
    assert torch.equal(T.RandomApply([transform], 1.0)(images, key), alone)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_each_image_is_chosen_with_its_own_draw(p):
    images = SMALL.expand(MANY, -1, -1, -1)
    chosen = changed(T.RandomApply([T.RandomInvert(1.0)], p)(images, Key(seed=1)), images)
    assert_share(chosen, p)


def test_transforms_of_a_list_are_all_applied_or_none():
    images = SMALL.expand(200, -1, -1, -1)
    both = T.RandomApply([T.RandomInvert(1.0), T.RandomVerticalFlip(1.0)])(images, Key(seed=1))
    done = (255 - images).flip(2)
    assert {torch.equal(image, other) for image, other in zip(both, done, strict=True)} == {True, False}
    assert all(torch.equal(a, b) or torch.equal(a, c) for a, b, c in zip(both, done, images, strict=True))


def test_neighbours_draw_independently():
    images = noise(1).expand(MANY, -1, -1, -1)
    pair = [T.RandomApply([T.RandomVerticalFlip(1.0)]), T.RandomApply([T.RandomInvert(1.0)])]
    made = T.Compose(pair)(images, Key(seed=5))
    flipped, inverted = images.flip(2), 255 - images
    for outcome in (images, inverted, flipped, inverted.flip(2)):
        assert_share(~changed(made, outcome), 1 / 4)


def test_what_comes_after_a_container_draws_other_numbers_than_what_is_in_it():
    images = noise(1).expand(500, -1, -1, -1)
    made = T.Compose([T.RandomApply([T.RandomVerticalFlip()], 1.0), T.RandomVerticalFlip()])(images, Key(seed=5))
    assert 0.3 < changed(made, images).float().mean() < 0.7  # with one draw for both, none would differ


def test_a_batch_of_eight_is_two_of_four():
    transform = T.Compose([T.RandomApply([T.RandomResizedCrop(8), T.ColorJitter(0.5)]), T.RandomHorizontalFlip()])
    images, key = noise(8), Key(seed=9, epoch=2)
    halves = [transform(images[:4], key), transform(images[4:], key.advanced(4))]
    assert torch.equal(transform(images, key), torch.cat(halves))


def test_sizes_may_differ_until_a_resize():
    transform = T.Compose([T.RandomApply([T.CenterCrop(4)]), T.Resize((8, 8))])
    made = transform(noise(20), Key(seed=1))
    assert made.shape == (20, 3, 8, 8)


def test_boxes_and_masks_follow_the_images_that_are_chosen():
    flip = T.RandomApply([T.RandomHorizontalFlip(1.0)])
    boxes = [tv_tensors.BoundingBoxes([[1, 2, 3, 7]], format="XYXY", canvas_size=(8, 8)) for _ in range(20)]
    masks = [tv_tensors.Mask(noise(1, seed)[0, :1]) for seed in range(20)]
    images = noise(20)
    (batch,) = fl.PrefetchLoader([(images, boxes, masks)], transform=flip, device="cpu")
    flipped = changed(batch[0], images).tolist()
    assert 0 < sum(flipped) < 20
    for is_flipped, box, mask, original in zip(flipped, batch[1], batch[2], masks, strict=True):
        assert box.tolist() == ([[5, 2, 7, 7]] if is_flipped else [[1, 2, 3, 7]])
        assert torch.equal(mask, original.flip(-1) if is_flipped else original)


def test_it_shares_passes_with_its_neighbours():
    simclr = T.Compose(
        [
            T.RandomResizedCrop(224),
            T.RandomHorizontalFlip(),
            T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
            T.RandomGrayscale(0.2),
            T.RandomApply([T.GaussianBlur(23)], 0.5),
            T.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )
    without = [each.transforms[0] if isinstance(each, T.RandomApply) else each for each in simclr.transforms]
    assert str(simclr).splitlines()[0] == str(T.Compose(without)).splitlines()[0]


def test_frames_of_a_video_are_chosen_together():
    video = tv_tensors.Video(noise(1).expand(20, 6, 3, 8, 8).clone())
    made = T.RandomApply([T.RandomInvert(1.0)])(video, Key(seed=2))
    assert {changed(frames, frames[:1] * 0 + video[0, :1]).sum().item() for frames in made} == {0, 6}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((T.RandomInvert(),), "write \\[RandomInvert"),
        (([T.Normalize([0.5], [0.5])],), "Normalize is for all images"),
        (([T.MixUp(0.8)],), "MixUp is for all images"),
        (([T.DecodeJpeg()],), "DecodeJpeg is for all images"),
        (([torch.neg],), "got <built-in method neg"),
        (([T.Compose([torch.neg])],), "got <built-in method neg"),
        (([],), "at least one"),
        (([T.RandomInvert()], 1.5), "got 1.5"),
    ],
)
def test_what_cannot_be_drawn_for_each_image_is_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        T.RandomApply(*arguments)


def test_color_jitter_takes_a_probability():
    images = SMALL.expand(MANY, -1, -1, -1)
    jittered = T.ColorJitter(brightness=(0.5, 0.5), p=0.3)(images, Key(seed=4))
    assert_share(changed(jittered, images), 0.3)
