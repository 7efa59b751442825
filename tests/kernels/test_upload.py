"""A pass's parameters come to the device as they were when it was queued."""

import pytest
import torch

from fastload.kernels.upload import upload

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CYCLES = 10**8  # of the device: far longer than the host takes to queue what these tests do


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_of_any_dtype_and_size_arrive(device):
    tensors = [
        torch.arange(26 * 300).view(300, 26),
        torch.tensor([True, False, True]),
        torch.empty(0, 4, dtype=torch.int32),
        torch.rand(257, 3),
        torch.arange(5, dtype=torch.int16),
    ]
    for actual, expected in zip(upload(torch.device(device), *tensors), tensors, strict=True):
        assert actual.device.type == device
        assert torch.equal(actual.cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_nothing(device):
    assert upload(torch.device(device)) == []


@pytest.mark.gpu
def test_what_waits_to_be_copied_is_not_overwritten():
    torch.cuda._sleep(CYCLES)
    moved = [upload(torch.device("cuda"), torch.full((1000,), number))[0] for number in range(40)]
    assert [values.unique().tolist() for values in moved] == [[number] for number in range(40)]
