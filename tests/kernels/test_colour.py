"""The colour pass against torchvision v2, and the kernel against its reference whatever is asked for."""

import importlib
from dataclasses import replace

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fastload.kernels.reference import colour as reference
from fastload.kernels.reference.noise import normal, philox
from fastload.kernels.spec import ColourProgram, Epilogue, Erase, Mix, Op
from fastload.structure.ragged import Ragged
from tests.counts import examples
from tests.kernels.whole import CROWD, each_of_crowd

FORMATS = (torch.contiguous_format, torch.channels_last)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.uint8)
HERE = [
    pytest.param("cpu", marks=pytest.mark.interpreter),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
TORCHVISION = {
    Op.BRIGHTNESS: F.adjust_brightness,
    Op.SATURATION: F.adjust_saturation,
    Op.HUE: F.adjust_hue,
    Op.GRAYSCALE: lambda image, _: F.rgb_to_grayscale(image, num_output_channels=len(image)),
    Op.SOLARIZE: F.solarize,
    Op.POSTERIZE: lambda image, bits: F.posterize(image, int(bits)),
    Op.POSTERIZE_BYTES: lambda image, bits: F.posterize((255 * image).round().byte(), int(bits)) / 255,
    Op.INVERT: lambda image, _: F.invert(image),
    Op.CONTRAST: F.adjust_contrast,
    Op.AUTOCONTRAST: lambda image, _: F.autocontrast(image),
}
# Where a rounding error may decide which side of a step a value is on.
JUMPS = (Op.SOLARIZE, Op.POSTERIZE, Op.POSTERIZE_BYTES)


def kernel(*args, **kwargs):
    return importlib.import_module("fastload.kernels.triton.colour").colour(*args, **kwargs)


def drawn(generator, count, channels, height, width):
    """Images, float32 of whole levels: random ones, and black, white, grey and nearly flat ones."""
    levels = torch.randint(0, 256, (count, channels, height, width), generator=generator)
    kinds = torch.randint(0, 8, (count, 1, 1, 1), generator=generator)
    levels = torch.where(kinds == 0, 0, torch.where(kinds == 1, 255, levels))
    levels = torch.where(kinds == 2, levels[:, :1], torch.where(kinds == 3, 100 + levels % 2, levels))
    return levels / 255


def amount(op, generator):
    number = float(torch.rand((), generator=generator))
    amounts = {Op.HUE: number - 0.5, Op.SOLARIZE: round(number * 255) / 255, Op.AUTOCONTRAST: 0}
    amounts |= dict.fromkeys((Op.POSTERIZE, Op.POSTERIZE_BYTES), int(number * 9))
    return amounts.get(op, 2 * number)


def program(rows):
    """Each image's operations, as many for all."""
    return ColourProgram(torch.tensor(rows, dtype=torch.float32))


def run(colour, images, epilogue, between=torch.float32):
    """All parts of the program, a pass each; everything else in the last pass."""
    parts = 1 if epilogue.program is None else epilogue.program.parts
    previous = None
    for part in range(parts - 1):
        step = Epilogue(program=epilogue.program, part=part, statistics=True, previous=previous, dtype=between)
        images, previous = colour(images, step)
    return colour(images, replace(epilogue, part=parts - 1, previous=previous))[0]


@pytest.mark.long
@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("op", TORCHVISION)
@examples(full=63, here=4)
@given(
    channels=st.sampled_from([3, 3, 1]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    seed=st.integers(0, 2**31),
)
def test_every_operation_is_torchvisions(device, op, channels, height, width, seed):
    generator = torch.Generator().manual_seed(seed)
    images = drawn(generator, 8, channels, height, width)
    amounts = torch.tensor([amount(op, generator) for _ in images]).tolist()
    epilogue = Epilogue(program=program([[(op, number)] for number in amounts]), dtype=torch.float32)
    for colour in (reference.colour, kernel):
        out = run(colour, images.to(device), epilogue).cpu()
        for image, number, actual in zip(images, amounts, out, strict=True):
            expected = TORCHVISION[op](image, number)
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("device", HERE)
def test_autocontrast_keeps_a_channel_that_spans_no_more_than_its_amount(device):
    image = torch.tensor([[0.5, 0.501], [0.25, 0.75], [1.0, 1.0]]).view(1, 3, 1, 2).to(device)
    expected = torch.tensor([[0.5, 0.501], [0.0, 1.0], [1.0, 1.0]]).view(1, 3, 1, 2)
    epilogue = Epilogue(program=program([[(Op.AUTOCONTRAST, 0.002)]]), dtype=torch.float32)
    for colour in (reference.colour, kernel):
        torch.testing.assert_close(run(colour, image, epilogue).cpu(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("device", HERE)
def test_operations_are_applied_in_each_images_own_order(device):
    generator = torch.Generator().manual_seed(1)
    images = drawn(generator, 4, 3, 6, 8)
    rows = [
        [(Op.BRIGHTNESS, 1.5), (Op.CONTRAST, 0.5), (Op.HUE, 0.1), (Op.AUTOCONTRAST, 0)],
        [(Op.AUTOCONTRAST, 0), (Op.SATURATION, 2), (Op.NONE, 0), (Op.NONE, 0)],
        [(Op.CONTRAST, 1.5), (Op.CONTRAST, 0.3), (Op.CONTRAST, 1.2), (Op.INVERT, 0)],
        [(Op.HUE, -0.4), (Op.GRAYSCALE, 0), (Op.NONE, 0), (Op.BRIGHTNESS, 0.5)],
    ]
    out = run(kernel, images.to(device), Epilogue(program=program(rows), dtype=torch.float32)).cpu()
    for image, row, actual in zip(images, rows, out, strict=True):
        expected = image
        for op, number in row:
            expected = expected if op is Op.NONE else TORCHVISION[op](expected, number)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("device", HERE)
@examples(full=10, here=5)
@given(
    sizes=each_of_crowd(st.tuples(st.integers(1, 22), st.integers(1, 22))),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**31),
)
def test_programs_are_torchvisions_for_each_of_many_images(device, sizes, channels, seed):
    generator = torch.Generator().manual_seed(seed)
    images = [drawn(generator, 1, channels, *size)[0] for size in sizes]
    # Behind other operations, steps and the stretching of nearly flat images would make much of their rounding.
    smooth = [op for op in TORCHVISION if op not in (*JUMPS, Op.AUTOCONTRAST)]
    rows = [[(op, amount(op, generator)) for op in picked(generator, list(TORCHVISION), smooth)] for _ in sizes]
    epilogue = Epilogue(program=program(rows), dtype=torch.float32)
    out = run(kernel, Ragged.of([image.to(device) for image in images]), epilogue)
    like = run(reference.colour, Ragged.of(images), epilogue)
    for image, row, actual, other in zip(images, rows, out, like, strict=True):
        expected = image
        for op, number in row:
            expected = TORCHVISION[op](expected, number)
        for each in (other, expected):
            torch.testing.assert_close(actual.cpu(), each, atol=1e-5, rtol=0)


def picked(generator, *choices):
    return [each[int(torch.randint(len(each), (), generator=generator))] for each in choices]


@pytest.mark.parametrize("device", HERE)
@examples(full=10, here=5)
@given(
    channels=st.sampled_from([1, 3]), height=st.integers(1, 12), width=st.integers(1, 12), seed=st.integers(0, 2**31)
)
def test_normalizing_erasing_and_mixing_are_torchvisions_for_each_of_many_images(device, channels, height, width, seed):
    generator = torch.Generator().manual_seed(seed)
    images = drawn(generator, CROWD, channels, height, width)
    mean, std, value = (0.4, 0.5, 0.6)[:channels], (0.2, 0.25, 0.5)[:channels], (-1.0, 0.0, 2.0)[:channels]
    begins, ends = torch.rand(2, 2, CROWD, 2, generator=generator).sort(0).values * torch.tensor([height, width])
    boxes = torch.cat([begins.floor(), ends.floor() - begins.floor()], dim=2).int()
    partners = torch.randint(CROWD, (CROWD,), generator=generator)
    inside, outside = torch.rand(2, CROWD, generator=generator)
    epilogue = Epilogue(
        dtype=torch.float32,
        scale=tuple(1 / s for s in std),
        bias=tuple(-m / s for m, s in zip(mean, std, strict=True)),
        erase=Erase(boxes[0], torch.zeros(CROWD).long(), (0.0,) * channels, value),
        mix=Mix(partners.int(), boxes[1], inside, outside),
    )
    actual = kernel(images.to(device), epilogue)[0].cpu()
    filling = torch.tensor(value).view(-1, 1, 1)
    normalized = F.normalize(images, mean, std)
    erased = [F.erase(image, *box, filling) for image, box in zip(normalized, boxes[0].tolist(), strict=True)]
    expected = []
    for n, (top, left, rows, columns) in enumerate(boxes[1].tolist()):
        weight = torch.full((height, width), float(outside[n]))
        weight[top : top + rows, left : left + columns] = inside[n]
        expected.append(weight * erased[n] + (1 - weight) * erased[int(partners[n])])
    for other in (reference.colour(images, epilogue)[0], torch.stack(expected)):
        torch.testing.assert_close(actual, other, atol=1e-5, rtol=0)


def random_epilogue(generator, count, channels, dtype, memory_format, ragged):
    """Everything that can be asked for, each at random."""
    chosen = [bool(choice) for choice in torch.randint(0, 2, (5,), generator=generator)]
    smooth = [op for op in TORCHVISION if op not in JUMPS]
    picks = torch.randint(0, len(smooth), (count, 3), generator=generator).tolist()
    rows = [[(smooth[pick], amount(smooth[pick], generator)) for pick in row] for row in picks]
    boxes = torch.randint(-2, 8, (2, count, 4), generator=generator).int()
    boxes[..., 2:] = boxes[..., 2:].clamp(min=0)
    noise = (0.2,) * channels if chosen[3] else (0.0,) * channels
    weights = torch.tensor([0, 0.25, 1])[torch.randint(0, 3, (2, count), generator=generator)]
    partners = torch.randint(0, count, (count,), generator=generator).int()
    return Epilogue(
        dtype=dtype,
        memory_format=memory_format,
        scale=(2.0, 3.0, 4.0, 5.0)[:channels] if chosen[0] else None,
        bias=(-0.5, 0.0, 0.5, 0.25)[:channels] if chosen[0] else None,
        program=program(rows) if chosen[1] and channels in (1, 3) else None,
        erase=Erase(boxes[0], torch.arange(count) * 2**40 + 3, noise, (0.5,) * channels) if chosen[2] else None,
        mix=Mix(partners, boxes[1], *weights) if chosen[4] and not ragged else None,
    )


def layouts(images):
    """The same images as another pass or a user may hand them over."""
    n, c, h, w = images.shape
    wide = torch.zeros(n, c, h + 2, w + 3, dtype=images.dtype, device=images.device)
    wide[:, :, 1 : h + 1, 2 : w + 2] = images
    return {
        "contiguous": images,
        "channels last": images.contiguous(memory_format=torch.channels_last),
        "a crop": wide[:, :, 1 : h + 1, 2 : w + 2],
    }


def poisoned(colour, *args):
    """What ``colour`` returns when all memory that it takes is filled with NaN, or 77, first."""
    empty = torch.empty

    def filled(*args, **kwargs):
        out = empty(*args, **kwargs)
        return out.fill_(float("nan") if out.is_floating_point() else 77)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", filled)
        return run(colour, *args)


def assert_equal(actual, expected):
    """To within 1e-5 of the greatest value, 10, that is asked for below, and one rounding to the dtype."""
    assert actual.dtype is expected.dtype
    truncates = actual.dtype is torch.bfloat16  # in Triton's interpreter
    one = 1 if actual.dtype is torch.uint8 else 1e-4
    relative = 0 if actual.dtype is torch.uint8 else torch.finfo(actual.dtype).eps * (1 + truncates)
    torch.testing.assert_close(actual.float(), expected.float(), atol=one, rtol=relative)


@pytest.mark.parametrize("device", HERE)
@examples(full=40, here=16)
@given(
    shape=st.tuples(st.integers(1, 4), st.sampled_from([1, 3, 3, 4]), st.integers(1, 30), st.integers(1, 40)),
    layout=st.sampled_from(["contiguous", "channels last", "a crop"]),
    dtype_in=st.sampled_from(DTYPES),
    dtype=st.sampled_from(DTYPES),
    memory_format=st.sampled_from(FORMATS),
    seed=st.integers(0, 2**31),
)
def test_a_batch_is_finished_as_the_reference_does(device, shape, layout, dtype_in, dtype, memory_format, seed):
    generator = torch.Generator().manual_seed(seed)
    images = drawn(generator, *shape) * (255 if dtype_in is torch.uint8 else 1)
    images = layouts(images.round() if dtype_in is torch.uint8 else images)[layout].to(dtype_in)
    epilogue = random_epilogue(generator, *shape[:2], dtype, memory_format, ragged=False)
    actual, expected = poisoned(kernel, images.to(device), epilogue), run(reference.colour, images, epilogue)
    assert actual.stride() == expected.stride()
    assert_equal(actual.cpu(), expected)


@pytest.mark.parametrize("device", HERE)
@examples(full=20, here=8)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40)), min_size=1, max_size=4),
    channels=st.sampled_from([1, 3]),
    dtype=st.sampled_from(DTYPES),
    memory_format=st.sampled_from(FORMATS),
    seed=st.integers(0, 2**31),
)
def test_images_of_different_sizes_are_finished_as_the_reference_does(
    device, sizes, channels, dtype, memory_format, seed
):
    generator = torch.Generator().manual_seed(seed)
    images = [drawn(generator, 1, channels, *size)[0] for size in sizes]
    epilogue = random_epilogue(generator, len(sizes), channels, dtype, memory_format, ragged=True)
    actual = poisoned(kernel, Ragged.of([image.to(device) for image in images]), epilogue)
    expected = run(reference.colour, Ragged.of(images), epilogue)
    for one, other in zip(actual, expected, strict=True):
        laid_out = one.permute(1, 2, 0) if memory_format is torch.channels_last else one
        assert laid_out.is_contiguous()
        assert_equal(one.cpu(), other)


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("is_ragged", [False, True])
def test_parameters_copied_with_an_earlier_pass_are_those_of_the_later_one(device, is_ragged):
    generator = torch.Generator().manual_seed(0)
    images = drawn(generator, 4, 3, 20, 30).to(device)
    images = Ragged.of(list(images)) if is_ragged else images
    erase, other = (
        Erase(torch.tensor([[row, 2, 9, 9]] * 4).int(), torch.arange(4), (0.3,) * 3, (0.5,) * 3) for row in (1, 8)
    )
    rows = [[(Op.BRIGHTNESS, 0.5), (Op.CONTRAST, 0.7), (Op.INVERT, 0), (Op.AUTOCONTRAST, 0)]] * 4
    last = Epilogue(dtype=torch.float32, program=program(rows), part=2, erase=erase)
    middle = replace(last, part=1, statistics=True, erase=None, following=[last], moved={})
    first = replace(middle, part=0, following=[middle, last], moved={})
    expected = run(kernel, images, replace(last, moved={}))
    for _ in range(3):  # the last time, nothing was copied along
        values, previous = images, None
        for epilogue in (first, middle, last):
            values, previous = kernel(values, replace(epilogue, previous=previous))
        for one, alike in zip(values, expected, strict=True):
            assert torch.equal(one, alike)
        kernel(images, Epilogue(dtype=torch.float32, erase=other))
        assert not any(epilogue.moved for epilogue in (first, middle, last))


@pytest.mark.parametrize("device", HERE)
def test_bytes_are_the_nearest(device):
    images = torch.linspace(0, 1, 3000, device=device).view(1, 3, 20, 50)
    for batch in (images, Ragged.of(images)):
        out = kernel(batch, Epilogue(dtype=torch.uint8))[0]
        assert ((out[0].double() - 255 * images[0].double()).abs() <= 0.5 + 1e-4).all()


@pytest.mark.parametrize("device", HERE)
def test_runs_repeat_bit_for_bit(device):
    images = drawn(torch.Generator().manual_seed(0), 3, 3, 40, 44).to(device)
    epilogue = Epilogue(program=program([[(Op.CONTRAST, 0.7), (Op.AUTOCONTRAST, 0)]] * 3), dtype=torch.float16)
    assert torch.equal(run(kernel, images, epilogue), run(kernel, images, epilogue))


@pytest.mark.parametrize("device", HERE)
def test_statistics_are_of_values_before_they_are_rounded(device):
    """Half precision in between moves each value by up to 2**-11, and their mean by far less."""
    images = torch.full((1, 3, 16, 16), 0.3, device=device)
    rows = [[(Op.BRIGHTNESS, 1.001), (Op.CONTRAST, 0.0)]]
    epilogue = Epilogue(program=program(rows), dtype=torch.float32)
    out = run(kernel, images, epilogue, between=torch.float16)
    torch.testing.assert_close(out, torch.full_like(out, 0.3 * 1.001 * 0.9999), atol=1e-6, rtol=0)


@pytest.mark.parametrize("device", HERE)
def test_a_partner_is_mixed_with_its_own_operations_and_erasure(device):
    images = torch.zeros(2, 1, 2, 4, device=device)
    epilogue = Epilogue(
        program=program([[(Op.NONE, 0)], [(Op.INVERT, 0)]]),
        erase=Erase(torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1]]).int(), torch.zeros(2).long(), (0.0,), (5.0,)),
        mix=Mix(
            torch.tensor([1, 0]).int(),
            torch.tensor([[0, 0, 1, 4], [0, 0, 0, 0]]).int(),
            torch.tensor([0.0, 0.0]),
            torch.tensor([1.0, 0.25]),
        ),
        dtype=torch.float32,
    )
    out = kernel(images, epilogue)[0].cpu()
    assert out[0, 0].tolist() == [[5, 1, 1, 1], [0, 0, 0, 0]]
    assert out[1, 0].tolist() == [[1.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]]


@pytest.mark.gpu
@pytest.mark.parametrize("memory_format", FORMATS)
def test_of_many_images_each_is_mixed_with_its_own_partner(memory_format):
    """So many that a program takes several, and finds some partners at hand and others not."""
    count, generator = 96, torch.Generator().manual_seed(0)
    before = torch.arange(count).roll(1)
    partners = torch.where(
        torch.rand(count, generator=generator) < 0.7, before, torch.randperm(count, generator=generator)
    )
    boxes = torch.randint(0, 200, (count, 4), generator=generator)
    weights = torch.rand(2, count, generator=generator).round(decimals=1)  # some are 1
    images = drawn(generator, count, 3, 224, 224).to("cuda", torch.float16)
    mix = Mix(partners.int(), boxes.int(), *weights)
    epilogue = Epilogue(mix=mix, dtype=torch.float32, memory_format=memory_format)
    torch.testing.assert_close(kernel(images, epilogue)[0], reference.colour(images, epilogue)[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("device", HERE)
def test_an_empty_batch_stays_empty(device):
    for colour in (reference.colour, kernel):
        out, statistics = colour(torch.empty(0, 3, 8, 8, device=device), Epilogue(statistics=True))
        assert out.shape == (0, 3, 8, 8)
        assert statistics is None


# Noise


def test_philox_gives_its_authors_test_vectors():
    """From kat_vectors in Random123: philox4x32 with 10 rounds."""
    ones, pi = 2**32 - 1, [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    assert philox(2**64 - 1, np.full(4, ones, dtype=np.uint64)).tolist() == [
        0x408F276D,
        0x41C83B0E,
        0xA20BC7C6,
        0x6D5451FD,
    ]
    assert philox(0x299F31D0A4093822, np.array(pi, dtype=np.uint64)).tolist() == [
        0xD16CFE09,
        0x94FDCCEB,
        0x5001E420,
        0x24126EA1,
    ]


def test_noise_is_standard_normal():
    noise = normal(7, (6, 100, 100)).double()
    count = noise.numel()
    assert abs(noise.mean()) < 5 / count**0.5
    assert abs(noise.var() - 1) < 5 * (2 / count) ** 0.5
    correlations = torch.corrcoef(noise.flatten(1)) - torch.eye(6)
    assert correlations.abs().max() < 5 / 100
    assert abs((noise.abs() < 1).double().mean() - 0.6827) < 5 * (0.6827 * 0.3173 / count) ** 0.5


@pytest.mark.parametrize("device", HERE)
def test_the_kernel_draws_the_references_noise(device):
    """Whatever the seed: Philox's bits are the same; the rest is float32's rounding of log, sqrt, cos and sin."""
    seeds = torch.tensor([0, 1, 2**63 - 1, 123456789012345678])
    boxes = torch.tensor([[0, 0, 20, 28]] * len(seeds)).int()
    images = torch.zeros(len(seeds), 6, 20, 28, device=device)
    epilogue = Epilogue(dtype=torch.float32, erase=Erase(boxes, seeds, (1.0,) * 6, (0.0,) * 6))
    expected = torch.stack([normal(int(seed), (6, 20, 28)) for seed in seeds])
    torch.testing.assert_close(kernel(images, epilogue)[0].cpu(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, Ragged.of])
def test_a_byte_becomes_the_float_nearest_to_its_share_of_255(device, layout):
    levels = torch.arange(256, dtype=torch.uint8, device=device).view(1, 1, 16, 16)
    out = kernel(layout(levels), Epilogue(dtype=torch.float32))[0]
    assert torch.equal(out[0].flatten().cpu().double(), (torch.arange(256).double() / 255).float().double())


# What is refused

IMAGES = torch.zeros(1, 3, 4, 4)
CONTRAST_LAST = ColourProgram(torch.tensor([[[Op.CONTRAST, 0.5]]]))
NO_BOX = torch.zeros(1, 4, dtype=torch.int32)
MIX = Mix(torch.zeros(1, dtype=torch.int32), NO_BOX, torch.ones(1), torch.ones(1))


@pytest.mark.parametrize(
    ("images", "epilogue", "error", "message"),
    [
        (IMAGES.double(), Epilogue(), TypeError, r"the images' dtype must be one of .*; got torch.float64"),
        (
            IMAGES,
            Epilogue(dtype=torch.int32),
            TypeError,
            r"epilogue.dtype, must be .*; got torch.int32",
        ),
        (IMAGES, Epilogue(memory_format=torch.channels_last_3d), ValueError, "memory_format must be one of"),
        (IMAGES[:, :2], Epilogue(program=CONTRAST_LAST), ValueError, "need 1 or 3 channels; got 2"),
        (
            IMAGES,
            Epilogue(scale=(1.0,), bias=(0.0,)),
            ValueError,
            r"epilogue.scale must have .* 3 channels; got \(1.0,\)",
        ),
        (IMAGES, Epilogue(scale=(1.0,) * 3), ValueError, "go together"),
        (IMAGES, Epilogue(statistics=True, mix=MIX), ValueError, "leave those to the last pass"),
        (Ragged.of(IMAGES), Epilogue(mix=MIX), ValueError, "crop or resize them first"),
        (IMAGES, Epilogue(program=CONTRAST_LAST, part=1), ValueError, "got epilogue.previous None"),
    ],
)
def test_what_cannot_be_done_is_refused(images, epilogue, error, message):
    with pytest.raises(error, match=message):
        reference.colour(images, epilogue)
