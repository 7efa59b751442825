"""A pass's parameters come to the device as they were when it was queued."""

import time

import pytest
import torch

from fastload.kernels.parameters import upload_parameters
from fastload.kernels.upload import upload

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CYCLES = 10**8  # of the device: far longer than the host takes to queue what these tests do


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", [upload, upload_parameters])
def test_tensors_of_any_dtype_and_size_arrive(function, device):
    tensors = [
        torch.arange(26 * 300).view(300, 26),
        torch.tensor([True, False, True]),
        torch.empty(0, 4, dtype=torch.int32),
        torch.rand(257, 3),
        torch.rand(3, 257).T,
        torch.arange(5, dtype=torch.int16),
    ]
    for actual, expected in zip(function(torch.device(device), *tensors), tensors, strict=True):
        assert actual.device.type == device
        assert actual.dtype is expected.dtype
        assert torch.equal(actual.cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", [upload, upload_parameters])
def test_nothing_is_nothing(function, device):
    assert function(torch.device(device)) == []


@pytest.mark.gpu
def test_what_waits_to_be_copied_is_not_overwritten():
    torch.cuda._sleep(CYCLES)
    moved = [upload(torch.device("cuda"), torch.full((1000,), number))[0] for number in range(40)]
    assert [values.unique().tolist() for values in moved] == [[number] for number in range(40)]


@pytest.mark.gpu
def test_what_kernels_have_yet_to_read_is_not_overwritten():
    torch.cuda._sleep(CYCLES)
    read = [upload(torch.device("cuda"), torch.full((1000,), number))[0] + 0 for number in range(40)]
    assert [values.unique().tolist() for values in read] == [[number] for number in range(40)]


@pytest.mark.gpu
def test_it_arrives_while_the_stream_has_other_work():
    numbers = torch.arange(1000)
    upload(torch.device("cuda"), numbers)
    torch.cuda.synchronize()
    torch.cuda._sleep(20 * CYCLES)
    (moved,) = upload(torch.device("cuda"), numbers + 1)
    time.sleep(0.1)
    with torch.cuda.stream(torch.cuda.Stream()):
        arrived = moved.cpu()
    assert not torch.cuda.current_stream().query()
    assert torch.equal(arrived, numbers + 1)


@pytest.mark.gpu(2)
def test_the_current_device_and_streams_are_what_they_were():
    streams = [torch.cuda.current_stream(device) for device in range(2)]
    (moved,) = upload(torch.device("cuda", 1), torch.arange(3))
    assert moved.tolist() == [0, 1, 2]
    assert torch.cuda.current_device() == 0
    assert [torch.cuda.current_stream(device) for device in range(2)] == streams
