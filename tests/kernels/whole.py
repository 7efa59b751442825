"""What the tests of kernels over whole batches share: images that are hard, and kernels held to their references."""

from importlib import import_module

import pytest
import torch
from hypothesis import strategies as st

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


def stored(images, dtype):
    return (images * 255).round().to(dtype) if dtype is torch.uint8 else images.to(dtype)


LAYOUTS = {
    "contiguous": torch.Tensor.contiguous,
    "channels last": lambda images: images.contiguous(memory_format=torch.channels_last),
    "a crop": lambda images: torch.nn.functional.pad(images, (2, 1, 1, 1))[..., 1:-1, 2:-1],
    "expanded": lambda images: images[:1].expand_as(images),
}
LAID_OUT = {"layout": st.sampled_from(list(LAYOUTS)), "dtypes": st.tuples(*[st.sampled_from(DTYPES)] * 2)}


def hold_to_reference(name, images, *parameters, tolerance, device, layout, dtypes, **options):
    """The kernel agrees with its reference on ``images`` in such memory, up to the rounding of what is stored."""
    images = LAYOUTS[layout](stored(images, dtypes[0]))
    actual = kernel(name)(images.to(device), *parameters, dtype=dtypes[1], **options)
    like = reference(name)(images, *parameters, dtype=dtypes[1], **options)
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
