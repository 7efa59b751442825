"""``Launcher``: each launch computes with its own arguments, whatever was launched before."""

import pytest
import torch
import triton
import triton.language as tl
from torchvision import tv_tensors

from fastload.kernels.triton.launcher import MOST_KINDS, Constants, Launcher, _kind

DEVICES = [pytest.param("cpu", marks=pytest.mark.interpreter), pytest.param("cuda", marks=pytest.mark.gpu)]
BLOCK = 32
CONSTANTS = {negate: Constants({"block": BLOCK, "negate": negate, "num_warps": 1}) for negate in (False, True)}


@triton.jit
def sum_kernel(source, out, count, factor, offsets, other, block: tl.constexpr, negate: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    value = tl.load(source + at, inside, 0) * factor
    if other is not None:
        value += tl.load(other + at, inside, 0)
    value += offsets[0] + offsets[1]
    tl.store(out + at, -value if negate else value, inside)


class Counting:
    """A kernel that counts its launches by Triton's own way."""

    def __init__(self, kernel):
        self.kernel, self.count = kernel, 0

    @property
    def arg_names(self):
        return self.kernel.arg_names

    def __getitem__(self, grid):
        self.count += 1
        return self.kernel[grid]


def assert_launches(launch, source, factor, offsets, other=None, *, negate=False):
    out = torch.full_like(source, torch.nan)
    arguments = {"source": source, "out": out, "count": len(source), "factor": factor, "offsets": offsets}
    launch(source.device, (-(-len(source) // BLOCK), 1, 1), {**arguments, "other": other}, CONSTANTS[negate])
    expected = source * factor + (0 if other is None else other) + sum(offsets)
    torch.testing.assert_close(out, -expected if negate else expected)


@pytest.mark.parametrize("device", DEVICES)
def test_each_launch_computes_with_its_own_arguments(device):
    launch = Launcher(sum_kernel)
    memory = torch.arange(200.0, device=device)
    for _ in range(2):  # as compiled, and as remembered
        for count in (1, 2, 16, 17, 128):  # Triton compiles other code for 1, and for multiples of 16
            for start in (0, 1):  # and for pointers that are aligned
                source = memory[start : start + count]
                for factor in (1.0, 2.5):
                    assert_launches(launch, source, factor, (1.0, 3))
                assert_launches(launch, source, 0.5, (4.0, 5), negate=True)
                assert_launches(launch, source, 0.5, (4.0, 1), memory[50 : 50 + count])
        assert_launches(launch, memory.double(), 2.0, (0.0, 2))


def test_a_tensor_of_another_type_is_of_the_same_kind_and_is_not_kept():
    plain = torch.zeros(1, 3, 4, 4)
    for typed in (tv_tensors.Image(plain), torch.nn.Parameter(plain)):
        assert _kind(typed) == _kind(plain)
    for other in (plain.double(), plain.flatten()[1:], None):
        assert _kind(plain) != _kind(other)


@pytest.mark.gpu
def test_what_was_compiled_is_not_looked_for_again():
    kernel = Counting(sum_kernel)
    launch = Launcher(kernel)
    for number in range(20):
        assert_launches(launch, torch.rand(64, device="cuda"), number / 2, (float(number), 3))
    assert kernel.count == 1


@pytest.mark.gpu
def test_what_is_remembered_is_bounded():
    launch = Launcher(sum_kernel)
    source = torch.rand(64, device="cuda")
    for number in range(2, 2 + MOST_KINDS + 10):
        assert_launches(launch, source, 1.0, (0.0, number))
    assert len(launch._known) <= MOST_KINDS


@pytest.mark.gpu(2)
def test_each_device_has_its_own():
    launch = Launcher(sum_kernel)
    for _ in range(2):
        for device in range(2):
            with torch.cuda.device(device):
                assert_launches(launch, torch.rand(64, device=f"cuda:{device}"), 2.0, (1.0, 3))
