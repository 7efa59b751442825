"""Parameters come to the device as they were when their launch was queued, though their memory is used again."""

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from fastload import transforms as T
from fastload.kernels.parameters import MOST_LAYOUTS, _of_threads, _own_blocks, upload_parameters
from tests.untouchable import Untouchable

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CYCLES = 10**8  # of the device: far longer than the host takes to queue what these tests do


def sums(device, first=0, count=60):
    """What launches read that are queued one after the other, of two layouts in turn; each sums 1,000 equal numbers."""
    device = torch.device(device)
    read = []
    for number in range(first, first + count):
        rows, weights = upload_parameters(
            device, torch.full((500 + number % 2 * 500, 2), number), torch.full((3,), number / 2)
        )
        read.append((rows[-500:].sum(), weights.sum()))
    return [(int(rows), float(weights)) for rows, weights in read]


def expected(first=0, count=60):
    return [(1000 * number, 1.5 * number) for number in range(first, first + count)]


@pytest.mark.parametrize("device", DEVICES)
def test_each_launch_reads_its_own(device):
    assert sums(device) == expected()


@pytest.mark.gpu
def test_what_a_busy_device_has_yet_to_read_is_not_overwritten():
    for _ in range(3):
        torch.cuda._sleep(CYCLES)
        assert sums("cuda") == expected()


@pytest.mark.gpu
def test_what_the_launch_after_the_next_reads_may_still_be_there():
    """Two launches may read the parameters of the first, as a blur along rows and then along columns does."""
    device, read = torch.device("cuda"), []
    torch.cuda._sleep(CYCLES)
    before = None
    for number in range(40):
        (values,) = upload_parameters(device, torch.full((1000,), number))
        if before is not None:
            read.append(before.sum())
        before = values
    assert [int(each) for each in read] == [1000 * number for number in range(39)]


@pytest.mark.gpu
def test_a_later_pass_reads_what_was_copied_with_an_earlier_one_however_far_the_host_is_ahead():
    """Contrast and autocontrast begin passes of their own, and so does mixing behind a crop."""
    colours = T.ColorJitter(0.5, 0.5, 0.5), T.RandomAutocontrast(0.5), T.ColorJitter(contrast=0.5)
    recipe = T.Compose(
        [T.RandomResizedCrop(32), *colours, T.Normalize([0.5] * 3, [0.5] * 3), T.RandomErasing(1.0), T.MixUp(0.8, 10)]
    )
    images = torch.randint(0, 256, (16, 3, 48, 48), dtype=torch.uint8, device="cuda")
    keys = [T.Key(seed=1, place=16 * number) for number in range(40)]
    alone = []
    for key in keys:
        alone.append(recipe(images, key))
        torch.cuda.synchronize()
    torch.cuda._sleep(CYCLES)
    queued = [recipe(images, key) for key in keys]
    assert all(map(torch.equal, queued, alone))


@pytest.mark.gpu
def test_streams_in_turn_read_their_own():
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda._sleep(CYCLES)
    read = []
    for number in range(60):
        with torch.cuda.stream(streams[number % 3]):
            if number % 7 == 0:
                torch.cuda._sleep(CYCLES // 20)
            read.append(upload_parameters(torch.device("cuda"), torch.full((1000,), number))[0].sum())
    torch.cuda.synchronize()
    assert [int(each) for each in read] == [1000 * number for number in range(60)]


@pytest.mark.gpu
def test_threads_read_their_own():
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda first: sums("cuda", first), [0, 100, 200, 300]))
    assert found == [expected(first) for first in (0, 100, 200, 300)]


@pytest.mark.gpu
def test_memory_is_used_again_and_bounded():
    device = torch.device("cuda")
    for length in range(1, 3 * MOST_LAYOUTS):
        for number in range(12):
            upload_parameters(device, torch.full((length,), number))
            torch.cuda.synchronize()
    assert len(_own_blocks()) == MOST_LAYOUTS
    assert max(len(blocks._blocks) for blocks in _own_blocks().values()) <= 3


@contextmanager
def beside_a_thread(work):
    """A thread has done ``work``, and lives."""
    done, may_end = threading.Event(), threading.Event()

    def run():
        work()
        done.set()
        may_end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    done.wait()
    yield
    may_end.set()
    thread.join()


def exit_code_of_a_fork():
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join(60)
    return process.exitcode


def test_a_forked_child_does_not_destroy_what_a_thread_has():
    with beside_a_thread(lambda: _own_blocks().update(untouchable=Untouchable())):
        assert exit_code_of_a_fork() == 0


@pytest.mark.gpu
def test_a_worker_may_be_forked_while_a_thread_has_blocks():
    with beside_a_thread(lambda: sums("cuda")):
        assert exit_code_of_a_fork() == 0


def test_what_a_thread_had_goes_when_the_next_begins():
    first, second = threading.Thread(target=_own_blocks), threading.Thread(target=_own_blocks)
    for thread in (first, second):
        thread.start()
        thread.join()
    assert first not in _of_threads
    assert second in _of_threads


@pytest.mark.gpu(2)
def test_the_current_device_and_streams_are_what_they_were():
    streams = [torch.cuda.current_stream(device) for device in range(2)]
    (moved,) = upload_parameters(torch.device("cuda", 1), torch.arange(3))
    assert moved.tolist() == [0, 1, 2]
    assert torch.cuda.current_device() == 0
    assert [torch.cuda.current_stream(device) for device in range(2)] == streams
