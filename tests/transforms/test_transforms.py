"""Transforms by hand, as a user calls them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms import v2

from fastload import transforms as T
from tests.counts import examples
from tests.kernels.whole import batches, stored
from tests.transforms.draws import DEVICES

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGES = torch.randint(0, 256, (4, 3, 6, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def torchvision_normalized(images):
    return v2.functional.normalize(v2.functional.to_dtype(images, torch.float32, scale=True), MEAN, STD)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@examples(full=500, here=100)
@given(
    batch=batches(largest=40),
    mean=st.tuples(*[st.floats(0, 1)] * 3),
    std=st.tuples(*[st.floats(0.05, 1)] * 3),
)
def test_normalize_is_torchvisions(device, dtype, batch, mean, std):
    images = stored(batch, dtype)
    mean, std = mean[: images.shape[1]], std[: images.shape[1]]
    expected = v2.functional.normalize(v2.functional.to_dtype(images, torch.float32, scale=True), mean, std)
    actual = T.Normalize(mean, std)(images.to(device)).cpu()
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_mean_and_std_may_be_given_in_0_to_255():
    scaled = T.Normalize([255 * m for m in MEAN], [255 * s for s in STD])
    torch.testing.assert_close(scaled(IMAGES), T.Normalize(MEAN, STD)(IMAGES), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(scaled(IMAGES.float()), T.Normalize(MEAN, STD)(IMAGES), atol=1e-6, rtol=1e-6)


def test_floats_are_taken_as_scaled():
    torch.testing.assert_close(
        T.Normalize(MEAN, STD)(IMAGES / 255), T.Normalize(MEAN, STD)(IMAGES), atol=1e-5, rtol=1e-5
    )


def test_channels_may_come_last():
    last = IMAGES.permute(0, 2, 3, 1).contiguous()
    assert torch.equal(T.Normalize(MEAN, STD)(last), T.Normalize(MEAN, STD)(IMAGES))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_dtype_and_memory_format_are_as_asked(dtype, memory_format):
    out = T.Normalize(MEAN, STD, dtype=dtype, memory_format=memory_format)(IMAGES)
    assert out.dtype == dtype
    assert out.is_contiguous(memory_format=memory_format)


def test_normalising_twice_is_refused():
    with pytest.raises(ValueError, match="images would be normalised twice: leave out one; got"):
        T.Compose([T.Normalize(MEAN, STD), T.RandomHorizontalFlip(), T.Compose([T.Normalize(MEAN, STD)])])


def test_a_single_image_and_a_video_are_images_too():
    normalize = T.Normalize(MEAN, STD)
    assert torch.equal(normalize(IMAGES[0]), normalize(IMAGES)[0])
    video = IMAGES.unflatten(0, (2, 2))
    assert torch.equal(normalize(video), normalize(IMAGES).unflatten(0, (2, 2)))
    flip = T.Compose([T.RandomHorizontalFlip(1.0), normalize])
    assert torch.equal(flip(video).flatten(0, 1), normalize(IMAGES.flip(-1)))


def test_one_mean_and_std_are_for_all_channels_as_in_torchvision():
    expected = v2.functional.normalize(IMAGES / 255, (0.5,), (0.2,))
    torch.testing.assert_close(T.Normalize((0.5,), (0.2,))(IMAGES), expected)
    with pytest.raises(TypeError, match=r"looks like \(N, H, W, C\)"):
        T.Normalize((0.5,), (0.2,))(IMAGES.movedim(1, -1))


@pytest.mark.parametrize("transform", [T.RandomHorizontalFlip(1.0), T.CenterCrop(2), T.Normalize([0.5] * 3, [0.2] * 3)])
def test_a_list_of_images_whose_channels_come_last_is_refused(transform):
    with pytest.raises(TypeError, match=r"\(8, 6, 3\) looks like \(H, W, C\): permute them"):
        transform([torch.zeros(8, 6, 3), torch.zeros(8, 6, 3)])


def test_a_list_of_narrow_images_of_as_many_channels_as_means_is_normalised():
    images = T.Normalize([0.5] * 8, [1.0] * 8)([torch.ones(8, 16, 4), torch.ones(8, 12, 4)])
    assert [tuple(image.shape) for image in images] == [(8, 16, 4), (8, 12, 4)]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 3, 8, 1), (2, 3, 8, 1)),
        ((3, 8, 1), (3, 8, 1)),
        ((2, 1, 8, 1), (2, 1, 8, 1)),
        ((2, 8, 6, 1), (2, 1, 8, 6)),
    ],
    ids=["width of 1", "one image", "grey, width of 1", "grey, channels last"],
)
def test_with_one_mean_a_last_axis_of_one_is_the_channels_only_if_the_first_is_not(shape, expected):
    assert T.Normalize((0.5,), (0.2,))(torch.zeros(shape, dtype=torch.uint8)).shape == expected


@pytest.mark.parametrize(
    "transform", [T.GaussianBlur(3), T.RandomApply([T.GaussianBlur(3)], 1.0), T.MultiView([[T.GaussianBlur(3)]] * 2)]
)
def test_images_of_several_sizes_are_refused_with_the_transform_and_some_sizes(transform):
    images = [torch.zeros(3, height, 9) for height in (8, 8, 6, 7, 5)]
    message = r"GaussianBlur takes images of one size; got sizes such as \(8, 9\), \(6, 9\), \(7, 9\): crop or resize"
    with pytest.raises(TypeError, match=message):
        transform(images)


@pytest.mark.parametrize("first", [T.RandomErasing(1.0), T.RandomAdjustSharpness(2.0, 1.0)], ids=repr)
def test_bytes_stay_bytes_if_a_flip_is_last(first):
    assert T.Compose([first, T.RandomHorizontalFlip(1.0)])(IMAGES).dtype is torch.uint8


def test_typed_images_stay_typed():
    assert type(T.Normalize(MEAN, STD)(tv_tensors.Image(IMAGES[0]))) is tv_tensors.Image


def test_flip_mirrors_whom_it_drew():
    flip = T.RandomHorizontalFlip(0.5)
    key = T.Key(seed=1)
    drawn = flip.sample(torch.tensor([[6, 10]] * 4), key)
    assert 0 < drawn.sum() < 4
    expected = torch.stack(
        [image.flip(-1) if mirrored else image for image, mirrored in zip(IMAGES, drawn, strict=True)]
    )
    assert torch.equal(flip(IMAGES, key), expected)


def test_fused_is_one_after_the_other():
    key = T.Key(seed=1)
    flip, normalize = T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)
    fused = T.Compose([flip, normalize])(IMAGES, key)
    assert torch.equal(fused, normalize(flip(IMAGES, key.for_draw(0))))
    nested = T.Compose([T.Compose([flip]), T.Compose([normalize])])(IMAGES, key)
    assert torch.equal(nested, fused)


SIDES = st.integers(1, 25)
SIZES = st.tuples(SIDES, SIDES)


def geometric(interpolation):
    return st.one_of(
        st.builds(T.RandomHorizontalFlip, st.just(0.6)),
        st.builds(T.RandomVerticalFlip, st.just(0.6)),
        st.builds(T.Resize, SIZES, st.just(interpolation)),
        st.builds(T.RandomResizedCrop, SIZES, interpolation=st.just(interpolation)),
        st.builds(T.CenterCrop, SIZES),
        st.builds(T.RandomCrop, SIZES, st.integers(0, 3), st.just(True), st.just(0.4)),
    )


@examples(full=300, here=20)
@given(
    steps=st.sampled_from([("nearest", 0), ("nearest", 0), ("bilinear", 1e-5), ("bicubic", 1e-5)]).flatmap(
        lambda kind: st.tuples(st.lists(geometric(kind[0]), min_size=2, max_size=4), st.just(kind[1]))
    ),
    size=SIZES,
    seed=st.integers(0, 2**31),
)
def test_crops_resizes_and_flips_together_are_one_after_the_other(steps, size, seed):
    steps, atol = steps
    images, key = torch.rand(2, 1, *size, generator=torch.Generator().manual_seed(seed)), T.Key(seed)
    expected = images
    for draw, step in enumerate(steps):
        expected = step(expected, key.for_draw(draw))
    torch.testing.assert_close(T.Compose(steps)(images, key), expected, atol=atol, rtol=0)


def test_a_mirrored_image_is_resized_to_the_nearest_pixel_as_torchvision_does():
    row = torch.arange(10).expand(1, 1, 10, 10).to(torch.uint8)
    ours = T.Compose([T.RandomHorizontalFlip(1.0), T.Resize((4, 4), "nearest")])(row)
    theirs = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.Resize((4, 4), v2.InterpolationMode.NEAREST)])(row)
    assert torch.equal(ours, theirs)


def test_any_callable_can_stand_in_compose():
    compose = T.Compose([v2.RandomInvert(p=1.0), T.RandomHorizontalFlip(0.0), T.Normalize(MEAN, STD), torch.neg])
    torch.testing.assert_close(compose(IMAGES), -torchvision_normalized(255 - IMAGES), atol=1e-6, rtol=1e-6)


def test_a_compose_runs_the_transforms_that_it_has_now():
    compose, key = T.Compose([T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)]), T.Key(seed=1)
    compose(IMAGES, key)
    compose.transforms.insert(0, T.RandomCrop((4, 5)))
    compose.transforms[-1] = torch.neg
    assert torch.equal(compose(IMAGES, key), T.Compose([*compose.transforms])(IMAGES, key))


def test_a_compose_runs_the_transforms_that_its_containers_have_now():
    compose = T.Compose([T.RandomApply([T.ColorJitter(0.4)]), T.RandomHorizontalFlip(), T.ColorJitter(hue=0.2)])
    key = T.Key(seed=1)
    compose(IMAGES, key)
    compose.transforms[0].transforms.append(T.RandomInvert())
    assert torch.equal(compose(IMAGES, key), T.Compose([*compose.transforms])(IMAGES, key))


@pytest.mark.parametrize("last", [T.MixUp(num_classes=3), T.GaussianBlur(3, 1.0), T.RandAugment()])
def test_a_list_whose_images_a_function_cut_to_one_size_is_one_batch(last):
    pictures = [torch.rand(3, height, 9, generator=torch.Generator().manual_seed(height)) for height in (6, 7)]
    cut = torch.stack([picture[:, :5, :5] for picture in pictures])
    compose, key = T.Compose([lambda image: image[..., :5, :5], last]), T.Key()
    assert torch.equal(compose(pictures, key), last(cut, key.for_draw(1)))


def test_images_of_different_sizes_are_not_mixed():
    with pytest.raises(TypeError, match=r"only images of one size can be mixed.*crop or resize them first"):
        T.Compose([torch.neg, T.MixUp()])([torch.rand(3, 6, 9), torch.rand(3, 7, 9)])


def test_probability_is_that_of_the_draw():
    drawn = T.RandomHorizontalFlip(0.3).sample(torch.ones(100_000, 2, dtype=torch.int64), T.Key(seed=0))
    standard_deviation = (0.3 * 0.7 / 100_000) ** 0.5
    assert abs(drawn.double().mean() - 0.3) < 5 * standard_deviation


def test_print_shows_the_passes_in_order_and_their_bytes_relative_to_the_images():
    transform = T.Compose(
        [T.DecodeJpeg(), T.Resize((375, 500)), T.RandAugment(num_ops=2), torch.neg, T.Normalize(MEAN, STD)]
    )
    header, *passes = str(transform).splitlines()
    assert header == "11 passes over memory, in bytes per byte of uint8 images of 500x375:"
    names, costs = zip(*(line.rsplit(": ", 1) for line in passes), strict=True)
    assert names == (
        "  DecodeJpeg",
        "  1. Resize + RandAugment + statistics",
        "  2-10. RandAugment + statistics (9 passes)",
        f"  {torch.neg!r}",
        "  11. Normalize",
    )
    assert costs[1:3] == ("reads 1.00, writes 4.00", "reads 36.00, writes 33.00")
    assert costs[4] == "reads 1.00, writes 4.00"


def test_a_key_depends_on_each_of_its_parts():
    keys = [T.Key(), T.Key(seed=1), T.Key(epoch=1), T.Key(place=1), T.Key(draw=1)]
    assert len({float(key.uniform(1)) for key in keys}) == len(keys)
    assert torch.equal(T.Key().uniform(10)[4:], T.Key(place=4).uniform(6))


def test_without_a_key_torchs_generator_decides():
    flip = T.RandomHorizontalFlip()
    torch.manual_seed(5)
    first = [flip(IMAGES) for _ in range(3)]
    torch.manual_seed(5)
    assert all(torch.equal(flip(IMAGES), image) for image in first)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.RandomHorizontalFlip(1.5), r"p must be a probability in \[0, 1\]; got 1.5"),
        (lambda: T.Normalize([0.5], [0.5, 0.5]), "one number a channel"),
        (lambda: T.Normalize([0.5], [0.0]), r"std must be positive; got \[0.0\]"),
        (lambda: T.Normalize([0.5], [0.5], dtype=torch.uint8), "dtype must be one of.*got torch.uint8"),
        (lambda: T.Normalize([0.5], [0.5], memory_format=torch.preserve_format), "memory_format must be one of"),
        (lambda: T.Compose(["flip"]), "transforms must be callable.*got 'flip'"),
        (lambda: T.RandomHorizontalFlip()(torch.zeros(2, 8, 8, 3)), r"looks like \(N, H, W, C\)"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_got(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize("transform", [T.RandomHorizontalFlip(), T.MixUp(num_classes=3), T.Compose([T.Resize(4)])])
def test_labels_are_no_key(transform):
    with pytest.raises(
        TypeError, match=r"key must be a T.Key.*; got tensor\(\[0, 1, 2, 3\]\): labels and targets follow"
    ):
        transform(IMAGES, torch.arange(4))
