"""Crop, resize, flip and epilogue: the reference against torchvision, the kernel against the reference."""

import importlib

import pytest
import torch
import torchvision.transforms.v2.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fastload.kernels.reference.resample import resample as reference
from fastload.kernels.spec import ColourProgram, Epilogue, Erase, Mix, Op
from fastload.structure.ragged import Ragged
from tests.counts import count, examples, variants
from tests.kernels.whole import CONTENTS, batch, each_of_crowd, resized_crop, stored

HERE = [
    pytest.param("cpu", marks=pytest.mark.interpreter),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
INTERPOLATIONS = ("bilinear", "bicubic", "nearest")
DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
FORMATS = (torch.contiguous_format, torch.channels_last)
LAYOUTS = ("planar", "aligned", "interleaved", "columns first")
TALL, WIDE = count(full=900, here=160), count(full=1200, here=400)  # several blocks either way
EXTREMES = (((1, 1), (40, 40)), ((200, 1), (17, 3)), ((1, 300), (2, 33)), ((TALL, 5), (4, 4)), ((6, WIDE), (5, 3)))
FLOAT32 = Epilogue(dtype=torch.float32)

# Of full scale. In float16 a weight is off by at most 2**-11 of itself, which moves a mean by 2**-11. Where rounded
# weights are divided by their sum, that is off by as much, and values are between -1/2 and 1/2: it comes to the same.
# Twice for two axes; the cubic's weights add up to 1.3 in magnitude. What is rounded between the products is at most
# 128/255 * 1.3, by 2**-12. Errors of many weights hardly ever agree: it stays well below this.
HALF = 1e-3
SINGLE = 1e-5
# Triton's interpreter truncates to bfloat16.
ROUNDING = {torch.uint8: 1, torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 0}


def kernel(*args, **kwargs):
    return importlib.import_module("fastload.kernels.triton.resample").resample(*args, **kwargs)


def window(box, size, offset=(0, 0), flips=(0, 0)):
    return torch.tensor([[*box, *size, *offset, *flips]], dtype=torch.int32)


def picture(height, width, dtype=torch.uint8, channels=3, seed=0):
    values = torch.rand(channels, height, width, generator=torch.Generator().manual_seed(seed))
    return (values * 255).round().byte() if dtype is torch.uint8 else values.to(dtype)


def laid_out(image, layout):
    """The same image as a decoder or a user may hand it over."""
    channels, height, width = image.shape
    if layout == "aligned":
        other = float("nan") if image.dtype.is_floating_point else 255
        wide = torch.full((channels, height, -(-width // 16) * 16 + 16), other, dtype=image.dtype, device=image.device)
        wide[:, :, :width] = image
        return wide[:, :, :width]
    order = {"planar": (0, 1, 2), "interleaved": (1, 2, 0), "columns first": (0, 2, 1)}[layout]
    back = [order.index(axis) for axis in range(3)]
    return image.permute(order).contiguous().permute(back)


def compare(images, windows, size, interpolation="bilinear", fill=0.0, epilogue=FLOAT32, atol=HALF, clip=False):
    """The kernel, with a poisoned output, against the reference."""
    options = {"interpolation": interpolation, "fill": fill, "clip": clip, "epilogue": epilogue}
    empty = torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *args, **kwargs: empty(*args, **kwargs).fill_(99))
        actual, statistics = kernel(images, windows, size, **options)
    expected, _ = reference(images, windows, size, **options)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        assert a.stride() == e.stride()
        torch.testing.assert_close(a.float(), e.float(), atol=atol, rtol=0)
    return actual, statistics


def cases(side, target):
    """The size of an image, a box in it as fractions, and what size that becomes."""
    sizes, targets = (st.tuples(st.integers(1, most), st.integers(1, most)) for most in (side, target))
    return st.tuples(sizes, st.tuples(*[st.floats(0, 1)] * 4), targets)


boxes = cases(90, 70)


def box_within(size, parts):
    height, width = (1 + round(part * (side - 1)) for part, side in zip(parts, size, strict=False))
    return round(parts[2] * (size[0] - height)), round(parts[3] * (size[1] - width)), height, width


@examples(full=500, here=150)
@given(case=boxes, interpolation=st.sampled_from(INTERPOLATIONS))
def test_the_reference_is_torchvision(case, interpolation):
    size, parts, target = case
    box = box_within(size, parts)
    image = picture(*size, torch.float32)
    actual, _ = reference(
        Ragged.of([image]), window(box, target), target, interpolation=interpolation, epilogue=FLOAT32
    )
    expected = resized_crop(image, box, target, interpolation)
    torch.testing.assert_close(actual[0], expected, atol=SINGLE, rtol=0)


@examples(full=500, here=100)
@given(case=boxes, interpolation=st.sampled_from(("bilinear", "bicubic")), contents=st.sampled_from(CONTENTS))
def test_the_reference_that_clips_is_pillow_along_rows_then_columns(case, interpolation, contents):
    size, parts, target = case
    top, left, height, width = box = box_within(size, parts)
    image = stored(batch(1, 3, *size, contents, seed=0)[0], torch.uint8)
    actual, _ = reference(Ragged.of([image]), window(box, target), target, interpolation=interpolation, clip=True)
    cut = Image.fromarray(image[:, top : top + height, left : left + width].permute(1, 2, 0).numpy())
    filtered = Image.Resampling[interpolation.upper()]
    expected = F.pil_to_tensor(cut.resize((target[1], height), filtered).resize(target[::-1], filtered))
    # Pillow rounds between the axes, by half a level; weights of magnitude 1.3 make 0.65 of it. Both round at the end.
    torch.testing.assert_close(actual[0].int(), expected.int(), atol=1, rtol=0)


@pytest.mark.parametrize("device", HERE)
@examples(full=60, here=10)
@given(
    case=boxes,
    interpolation=st.sampled_from(INTERPOLATIONS),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
    channels=st.sampled_from([1, 3, 4, 5]),
    flips=st.tuples(st.booleans(), st.booleans()),
    beyond=st.just((0, 0, 0, 0)) | st.tuples(*[st.integers(-9, 9)] * 4),
    offset=st.just((0, 0)) | st.tuples(st.integers(-5, 5), st.integers(-5, 5)),
    memory_format=st.sampled_from(FORMATS),
    clip=st.booleans(),
)
def test_the_kernel_is_the_reference(
    device, case, interpolation, dtype, layout, channels, flips, beyond, offset, memory_format, clip
):
    size, parts, target = case
    top, left, height, width = box_within(size, parts)
    box = top + beyond[0], left + beyond[1], max(height + beyond[2], 1), max(width + beyond[3], 1)
    image = laid_out(picture(*size, dtype, channels).to(device), layout)
    virtual = max(target[0] + offset[1], 1), max(target[1] - offset[0], 1)
    epilogue = Epilogue(dtype=torch.float32, memory_format=memory_format)
    atol = HALF if dtype is torch.uint8 else SINGLE
    compare(Ragged.of([image]), window(box, virtual, offset, flips), target, interpolation, 0.3, epilogue, atol, clip)


@pytest.mark.long
@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize(("channels", "layout", "memory_format"), variants([1, 3, 4, 5], LAYOUTS, FORMATS))
def test_bicubic_of_bytes_is_clipped_in_every_layout(device, channels, layout, memory_format):
    images = [laid_out(picture(*size, channels=channels).to(device), layout) for size in ((90, 70), (33, 120))]
    windows = torch.cat([window((0, 0, 90, 70), (40, 65)), window((3, 5, 30, 100), (40, 65), flips=(0, 1))])
    epilogue = Epilogue(dtype=torch.float32, memory_format=memory_format)
    compare(Ragged.of(images), windows, (40, 65), "bicubic", epilogue=epilogue, clip=True)


@pytest.mark.long
@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@examples(full=10, here=5)
@given(
    crowd=each_of_crowd(st.tuples(cases(28, 16), st.sampled_from(CONTENTS), st.tuples(st.booleans(), st.booleans()))),
    interpolation=st.sampled_from(INTERPOLATIONS),
    channels=st.sampled_from([1, 3]),
)
def test_the_kernel_is_torchvisions_for_each_of_many_images(device, dtype, crowd, interpolation, channels):
    images, windows, expected = [], [], []
    for n, ((size, parts, target), contents, flips) in enumerate(crowd):
        box = box_within(size, parts)
        images.append(stored(batch(1, channels, *size, contents, seed=n)[0], dtype))
        windows.append(window(box, target, flips=flips))
        mirrored = [axis for axis, flipped in zip((-2, -1), flips, strict=True) if flipped]
        expected.append(resized_crop(images[-1], box, target, interpolation).flip(mirrored))
    options = {"interpolation": interpolation, "epilogue": FLOAT32}
    arguments = torch.cat(windows), torch.tensor([target for (_, _, target), *_ in crowd])
    actual, _ = kernel(Ragged.of([image.to(device) for image in images]), *arguments, **options)
    like, _ = reference(Ragged.of(images), *arguments, **options)
    for each in zip(actual, like, expected, strict=True):
        for other in each[1:]:
            torch.testing.assert_close(each[0].cpu(), other, atol=HALF if dtype is torch.uint8 else SINGLE, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize(
    ("memory_format", "dtype", "layout", "is_ragged"),
    variants(FORMATS, DTYPES, ("aligned", "interleaved"), (False, True)),
)
def test_every_dtype_and_memory_format_comes_out(device, memory_format, dtype, layout, is_ragged):
    images = [laid_out(picture(40, 70, seed=seed).to(device), layout) for seed in range(2)]
    windows = torch.cat([window((3, 5, 30, 61), (24, 40), flips=(0, flip)) for flip in (0, 1)])
    size = torch.tensor([[24, 40], [23, 37]]) if is_ragged else (24, 40)
    epilogue = Epilogue(dtype=dtype, memory_format=memory_format)
    compare(Ragged.of(images), windows, size, epilogue=epilogue, atol=HALF + ROUNDING[dtype])


@pytest.mark.parametrize("device", HERE)
def test_images_of_different_sizes_become_images_of_different_sizes(device):
    images = Ragged.of([picture(h, w, seed=h).to(device) for h, w in ((9, 80), (50, 20), (33, 33))])
    sizes = torch.tensor([[20, 40], [1, 5], [17, 36]])
    windows = torch.cat(
        [window((0, 0, *source), target) for source, target in zip(images.sizes.tolist(), sizes.tolist(), strict=True)]
    )
    out, _ = compare(images, windows, sizes)
    assert out.sizes.tolist() == sizes.tolist()


@pytest.mark.long
@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize(("shapes", "interpolation"), variants(EXTREMES, INTERPOLATIONS, ways=1))
def test_extreme_shapes_are_right(device, interpolation, shapes):
    source, target = shapes
    compare(Ragged.of([picture(*source).to(device)]), window((0, 0, *source), target), target, interpolation)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["planar", "interleaved"])
def test_a_huge_image_is_right(layout):
    image = laid_out(picture(6000, 8000).cuda(), layout)
    for size in ((224, 224), (5000, 7000)):
        compare(Ragged.of([image]), window((0, 0, 6000, 8000), size), size)


@pytest.mark.parametrize("device", HERE)
def test_rows_may_lie_two_gigabytes_apart(device):
    memory = torch.empty(2**31 + 64, dtype=torch.uint8, device=device)
    image = memory.as_strided((3, 2, 16), (16, 2**31, 1)).copy_(picture(2, 16))
    compare(Ragged.of([image]), window((0, 0, 2, 16), (2, 16)), (2, 16))


@pytest.mark.gpu
def test_images_may_be_more_than_a_launch_can_have():
    images = torch.arange(65_537, device="cuda").view(-1, 1, 1, 1).expand(-1, 3, 2, 2).byte().contiguous()
    windows = torch.cat([window((0, 0, 2, 2), (2, 2))] * len(images))
    assert torch.equal(kernel(Ragged.of(images), windows, (2, 2))[0], images)


@pytest.mark.long
@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize(("channels", "width", "dtype"), variants((1, 2, 3, 4), (40, 36, 34, 33), DTYPES))
def test_pixels_of_channels_last_are_stored_to_the_last(device, channels, width, dtype):
    images = Ragged.of([picture(12, 40, channels=channels, seed=seed).to(device) for seed in range(2)])
    windows = torch.cat([window((0, 0, 12, 40), (9, width))] * 2)
    epilogue = Epilogue(dtype=dtype, memory_format=torch.channels_last)
    compare(images, windows, (9, width), epilogue=epilogue, atol=HALF + ROUNDING[dtype])


@pytest.mark.long
@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_flat_images_stay_flat(device, interpolation):
    values = (0, 128, 255)
    images = [torch.full((3, 30, 20), value, dtype=torch.uint8, device=device) for value in values]
    for size in ((13, 16), (36, 56)):
        windows = window((0, 0, 30, 20), size).repeat(len(images), 1)
        out, _ = kernel(Ragged.of(images), windows, size, interpolation=interpolation)
        assert [image.unique().tolist() for image in out] == [[value] for value in values]


@pytest.mark.parametrize("device", HERE)
def test_a_crop_that_reaches_outside_is_torchvisions_pad_and_crop(device):
    image = picture(32, 32).to(device)
    expected = F.crop(F.pad(image, [4, 4, 4, 4], fill=51), 1, 6, 32, 32).flip(-1)
    virtual = window((0, 0, 32, 32), (32, 32), offset=(1 - 4, 6 - 4), flips=(0, 1))
    wide = window((1 - 4, 6 - 4, 32, 32), (32, 32), flips=(0, 1))
    for windows, interpolation in ((virtual, "bilinear"), (wide, "nearest")):
        out, _ = kernel(Ragged.of([image]), windows, (32, 32), interpolation=interpolation, fill=51 / 255)
        assert torch.equal(out[0], expected)


@pytest.mark.parametrize("device", HERE)
def test_values_are_finished(device):
    images = Ragged.of([picture(24, 40, seed=seed).to(device) for seed in range(3)])
    windows = torch.cat([window((0, 5, 20, 32), (35, 40))] * 3)
    bright, pale, contrast, none = [Op.BRIGHTNESS, 1.4], [Op.SATURATION, 0.5], [Op.CONTRAST, 1.5], [Op.NONE, 0.0]
    program = ColourProgram(torch.tensor([[bright, pale, contrast], [none, pale, contrast], [contrast, pale, bright]]))
    boxes = torch.tensor([[5, 5, 28, 30], [0, 0, 0, 0], [30, 35, 5, 5]], dtype=torch.int32)
    erase = Erase(boxes, torch.arange(3), (1.0, 1.0, 1.0), (0.0, 0.5, 1.0))
    amounts = {"scale": (2.0, 3.0, 4.0), "bias": (0.1, 0.2, -0.3)}
    epilogue = Epilogue(dtype=torch.float32, program=program, erase=erase, **amounts)
    # Brightness and scale make errors of the resampling larger.
    compare(images, windows, (35, 40), epilogue=epilogue, atol=1.4 * 4 * HALF)


@pytest.mark.parametrize("device", HERE)
def test_statistics_are_those_of_the_reference_and_repeat(device):
    images = Ragged.of([picture(24, 40, seed=seed).to(device) for seed in range(2)])
    windows = torch.cat([window((0, 5, 20, 32), (35, 40))] * 2)
    program = ColourProgram(torch.tensor([[[Op.AUTOCONTRAST, 0.0], [Op.CONTRAST, 0.5]]] * 2))
    epilogue = Epilogue(dtype=torch.float32, program=program, statistics=True)
    _, statistics = compare(images, windows, (35, 40), epilogue=epilogue)
    assert torch.equal(statistics, kernel(images, windows, (35, 40), epilogue=epilogue)[1])
    _, expected = reference(images, windows, (35, 40), epilogue=epilogue)
    minima = statistics[:, 1:] + 2 * 2**32  # stored less 2, in fixed point
    mean, least, greatest = statistics[:, 0] / (35 * 40), minima[:, :3], -minima[:, 3:]
    actual = torch.cat([mean[:, None], least, greatest], dim=1) / 2**32
    torch.testing.assert_close(actual, expected, atol=HALF, rtol=0)


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("corner", [(0, 9), (0, 2**20 + 3), (0, -(2**20)), (2**20 + 3, 0), (-(2**20), 0)])
def test_a_box_beside_the_image_is_filled(device, dtype, layout, corner):
    """Nothing is read there: behind a row there may be no number, and far behind it no memory."""
    image = laid_out(picture(7, 9, dtype).to(device), layout)
    out, _ = kernel(Ragged.of([image]), window((*corner, 5, 6), (4, 4)), (4, 4), fill=0.25, epilogue=FLOAT32)
    torch.testing.assert_close(out, torch.full_like(out, 0.25), atol=SINGLE, rtol=0)


@pytest.mark.parametrize("device", HERE)
def test_no_images_are_no_images(device):
    images = Ragged.of(torch.empty(0, 3, 8, 8, dtype=torch.uint8, device=device))
    out, _ = kernel(images, torch.empty(0, 10, dtype=torch.int32), (4, 5))
    assert out.shape == (0, 3, 4, 5)


MIX = Mix(torch.zeros(1, dtype=torch.int32), torch.zeros(1, 4, dtype=torch.int32), torch.ones(1), torch.ones(1))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"interpolation": "lanczos"}, ValueError, "'bilinear', 'bicubic' or 'nearest'; got 'lanczos'"),
        ({"windows": torch.zeros(1, 10)}, ValueError, r"int32 \(1, 10\) on the CPU; got torch.float32 \(1, 10\)"),
        ({"windows": window((0, 0, 0, 4), (2, 2))}, ValueError, r"1 or more; got \[0, 4, 2, 2\] for image 0"),
        ({"epilogue": Epilogue(mix=MIX)}, ValueError, "cannot mix"),
        (
            {"epilogue": Epilogue(dtype=torch.int32)},
            TypeError,
            "epilogue.dtype, must be .*; got torch.int32",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(arguments, error, message):
    arguments = {"windows": window((0, 0, 4, 4), (2, 2)), "size": (2, 2)} | arguments
    for function in (reference, kernel):
        with pytest.raises(error, match=message):
            function(Ragged.of([picture(4, 4)]), **arguments)
