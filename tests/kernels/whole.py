"""What the tests of kernels over whole batches share: images that are hard, and kernels held to their references."""

from importlib import import_module

import pytest
import torch
from hypothesis import strategies as st
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from tests.counts import count

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
FORMATS = (torch.contiguous_format, torch.channels_last)
HERE = [
    pytest.param("cpu", marks=pytest.mark.interpreter),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
CONTENTS = ("noise", "grey", "dull", "all 0", "all 255")


def reference(name):
    return getattr(import_module(f"fastload.kernels.reference.{name}"), name)


def kernel(name):
    """The kernel's launcher, into whose outputs nothing is left unwritten by luck."""
    launcher = getattr(import_module(f"fastload.kernels.triton.{name}"), name)

    def poisoned(*args, **kwargs):
        with pytest.MonkeyPatch.context() as patch:
            for make in (torch.empty, torch.empty_like):
                patch.setattr(torch, make.__name__, _poisoned(make))
            return launcher(*args, **kwargs)

    return poisoned


def _poisoned(make):
    def made(*args, **kwargs):
        tensor = make(*args, **kwargs)
        return tensor.fill_(float("nan") if tensor.is_floating_point() else 77)

    return made


def batches(smallest=1, largest=24, channels=(1, 3)):
    """Batches of up to three images in float32, from 0 to 1, which have values in between those of uint8 too."""
    sides = st.integers(smallest, largest)
    return st.builds(
        batch,
        st.integers(1, 3),
        st.sampled_from(channels),
        sides,
        sides,
        st.sampled_from(CONTENTS),
        st.integers(0, 2**31),
    )


def batch(n, channels, height, width, contents, seed):
    noise = torch.rand(n, channels, height, width, generator=torch.Generator().manual_seed(seed))
    return {
        "noise": noise,
        "grey": noise[:, :1].repeat(1, channels, 1, 1),
        "dull": 0.5 + noise / 50,
        "all 0": torch.zeros_like(noise),
        "all 255": torch.ones_like(noise),
    }[contents]


# Images of one launch; ten such batches are the 500 cases that every kernel is held to. Here each of the contents.
CROWD = count(full=50, here=len(CONTENTS))


def crowds(smallest=1, tallest=10, widest=48):
    """Batches of ``CROWD`` images of all contents; channels come last, which takes the fewest programs."""
    return st.builds(
        crowd,
        st.sampled_from((1, 3)),
        st.integers(smallest, tallest),
        st.integers(smallest, widest),
        st.integers(0, 2**31),
    )


def crowd(channels, height, width, seed):
    kinds = [batch(CROWD // len(CONTENTS), channels, height, width, contents, seed) for contents in CONTENTS]
    return torch.cat(kinds).contiguous(memory_format=torch.channels_last)


def each_of_crowd(parameter):
    return st.lists(parameter, min_size=CROWD, max_size=CROWD)


def stored(images, dtype):
    return (images * 255).round().to(dtype) if dtype is torch.uint8 else images.to(dtype)


LAYOUTS = {
    "contiguous": torch.Tensor.contiguous,
    "channels last": lambda images: images.contiguous(memory_format=torch.channels_last),
    "a crop": lambda images: torch.nn.functional.pad(images, (2, 1, 1, 1))[..., 1:-1, 2:-1],
    "expanded": lambda images: images[:1].expand_as(images),
}
LAID_OUT = {"layout": st.sampled_from(list(LAYOUTS)), "source": st.sampled_from(DTYPES)}


def hold_to_reference(name, images, *parameters, tolerance, device, layout, source, dtype, **options):
    """The kernel agrees with its reference on ``images`` in such memory, up to the rounding of what is stored."""
    images = LAYOUTS[layout](stored(images, source))
    actual = kernel(name)(images.to(device), *parameters, dtype=dtype, **options)
    like = reference(name)(images, *parameters, dtype=dtype, **options)
    assert (actual.dtype, actual.shape, actual.stride()) == (like.dtype, like.shape, like.stride())
    # On the CPU, where no convolution is rounded to fewer bits than float32 has.
    expected = reference(name)(images, *parameters, dtype=torch.float32, **options).double()
    for result in (actual.cpu(), like):
        assert_stored(result, expected, tolerance, device)


def assert_stored(actual, expected, tolerance, device):
    if actual.dtype is torch.uint8:
        assert ((actual - 255 * expected).abs() <= 0.5 + 255 * tolerance).all()
    else:
        # Triton's interpreter truncates to bfloat16, a whole unit in place of half.
        unit = torch.finfo(actual.dtype).eps * (1 if actual.dtype is torch.bfloat16 and device == "cpu" else 0.5)
        assert ((actual.double() - expected).abs() <= unit * expected.abs() + tolerance).all()


def assert_torchvisions(name, images, *parameters, expected, tolerance, device, **options):
    """Every image comes out of the kernel as out of the reference and as out of torchvision, which ``expected`` is."""
    actual = kernel(name)(images.to(device), *parameters, **options).cpu()
    for other in (reference(name)(images, *parameters, **options), torch.stack(expected)):
        torch.testing.assert_close(actual, other, atol=tolerance, rtol=0)


def resized_crop(image, box, size, interpolation):
    """Torchvision's ``resized_crop`` in float32; a single column is doubled, for PyTorch resizes one wrongly."""
    options = {"interpolation": InterpolationMode(interpolation), "antialias": True}
    image = image.float() / (255 if image.dtype is torch.uint8 else 1)
    resized = functional.resized_crop(image, *box, [box[2], size[1]], **options).expand(-1, -1, max(size[1], 2))
    return functional.resize(resized, [size[0], resized.shape[2]], **options)[..., : size[1]]


HALF_WAY = 1e-4  # pixels: float32's rounding of some operations on coordinates below 100


def assert_nearest(actual, images, matrices, fill):
    """Images warped to the nearest pixel: to either where a coordinate lies half way between two, but for rounding."""
    allowed = nearest_allowed(images, matrices, fill)
    assert ((actual.double() - allowed).abs() < 1e-6).any(0).all()


def nearest_allowed(images, matrices, fill):
    """Each pixel's candidates, (4, N, C, H, W), in float64."""
    n, _, height, width = images.shape
    y, x = (torch.arange(length, dtype=torch.float64) - (length - 1) / 2 for length in (height, width))
    places = torch.stack([x.expand(height, width), y[:, None].expand(height, width), torch.ones(height, width)])
    source_x, source_y = torch.einsum("nij,jyx->inyx", matrices.double().view(n, 2, 3), places)
    corners = [(i, j) for i in (-HALF_WAY, HALF_WAY) for j in (-HALF_WAY, HALF_WAY)]
    allowed = []
    for i, j in corners:
        near_x = (source_x + (width - 1) / 2 + 0.5 + i).floor().long()
        near_y = (source_y + (height - 1) / 2 + 0.5 + j).floor().long()
        inside = (near_x >= 0) & (near_x < width) & (near_y >= 0) & (near_y < height)
        image = torch.arange(n)[:, None, None]
        taken = images[image, :, near_y.clamp(0, height - 1), near_x.clamp(0, width - 1)]
        allowed.append(torch.where(inside[..., None], taken, fill or 0.0).permute(0, 3, 1, 2).double())
    return torch.stack(allowed)


def assert_copied(name, images, *parameters, device, **options):
    """Images that need nothing come out as they went in, bit for bit, from kernel and reference."""
    for dtype in DTYPES:
        image = stored(images, dtype)
        assert torch.equal(reference(name)(image, *parameters, dtype=dtype, **options), image)
        assert torch.equal(kernel(name)(image.to(device), *parameters, dtype=dtype, **options).cpu(), image)


def assert_right_in_training(name, *parameters, tolerance, **options):
    """A batch of the size that training uses, on the GPU: right, and the same again bit for bit."""
    images = torch.rand(64, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    for layout in ("contiguous", "channels last"):
        laid_out = LAYOUTS[layout](stored(images, torch.uint8))
        expected = reference(name)(laid_out, *parameters, dtype=torch.float32, **options).double()
        first, second = (
            kernel(name)(laid_out.cuda(), *parameters, dtype=torch.bfloat16, **options).cpu() for _ in range(2)
        )
        assert torch.equal(first, second)
        assert_stored(first, expected, tolerance, "cuda")
