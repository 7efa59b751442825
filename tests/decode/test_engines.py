"""NVIDIA's JPEG engines get one batch at a time, from one thread or from two."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from random import Random

import pytest
import torch

from fastload.data.collate import collate
from fastload.decode import device as decoding
from fastload.decode.engines import WORTH_TWO, Engines
from fastload.decode.helper import Helper
from fastload.decode.nvjpeg import DecodingError, library
from tests.files import jpeg

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def calling_through(monkeypatch):
    """Let new engines, whose buffers have to grow, decode; a function of the test's gets their calls of nvJPEG."""
    if decoding.engines(DEVICE) is None:
        pytest.skip("this GPU has no JPEG engines")

    def install(around):
        nvjpeg = library()
        hardware = Engines(nvjpeg, DEVICE)
        monkeypatch.setattr(decoding, "engines", lambda _: hardware)
        monkeypatch.setattr(nvjpeg, "call", partial(around, nvjpeg.call))

    return install


@pytest.fixture
def calls(calling_through):
    """The threads that hand files to nvJPEG."""
    threads = []

    def noted(call, function, *arguments):
        if function == "nvjpegDecodeBatched":
            threads.append(threading.current_thread())
        call(function, *arguments)

    calling_through(noted)
    return threads


@pytest.fixture
def helper():
    with ThreadPoolExecutor(1, thread_name_prefix="helper") as thread:
        yield Helper(thread, is_needed=True)


def photographs(count):
    return [jpeg(40 + 9 * (seed % 7), 56 + 11 * (seed % 5), seed=seed) for seed in range(count)]


def pinned(photographs):
    files = collate(photographs)
    files.block = files.block.pin_memory()
    return files


def test_a_batch_is_handed_over_when_the_one_before_is_done(calling_through):
    """Of another loader's, too; else nvJPEG may never end, if another process uses the GPU."""
    given = []

    def noted(call, function, *arguments):
        if function == "nvjpegDecodeBatched":
            assert all(event.query() for event in given)
        call(function, *arguments)
        given.append(torch.cuda.current_stream().record_event())

    calling_through(noted)
    files = pinned([jpeg(240, 320, seed=seed) for seed in range(4)])
    busy = torch.ones(8192, 8192, device=DEVICE)
    busy @ busy
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for _ in range(2):
        torch.cuda.synchronize()
        for _ in range(4):
            busy @ busy  # takes every multiprocessor, so that what the decoder launches has to wait
        for stream in streams:
            with torch.cuda.stream(stream):
                decoding.decode(files, DEVICE)
    assert len(given) == 1 + 1 + 4  # one sets the size of batch, and one grows the buffers


def test_buffers_grow_again_for_a_batch_of_larger_images(calls):
    small, large = (pinned([jpeg(*size, seed=seed) for seed in range(8)]) for size in ((60, 80), (240, 320)))
    counts, decoded = [], []
    for files in (small, large, small, large):
        calls.clear()
        decoded.append(decoding.decode(files, DEVICE)[0])
        counts.append(len(calls))
    assert counts == [1 + 1, 1 + 1, 1, 1]  # one more where buffers grow
    for before, after in zip(decoded[:2], decoded[2:], strict=True):
        assert all(map(torch.equal, before, after))


@pytest.mark.usefixtures("calls")
def test_decoding_soon_stops_to_wait_for_the_device():
    """Also if the images of the first batch are smaller: nvJPEG waits for all other work when a buffer grows."""
    random = Random(0)
    pool = [jpeg(random.randint(150, 300), random.randint(150, 300), seed=seed) for seed in range(200)]
    batches = [[jpeg(100, 100)] * 64] + [random.choices(pool, k=64) for _ in range(24)]
    training, side = torch.cuda.Stream(), torch.cuda.Stream()
    waited = []
    for files in map(pinned, batches):
        with torch.cuda.stream(training):
            torch.cuda._sleep(300_000_000)
        with torch.cuda.stream(side):
            decoding.decode(files, DEVICE)
        waited.append(training.query())
        torch.cuda.synchronize()
    assert not any(waited[12:])


def test_two_threads_decode_a_batch_to_the_same_pixels(calls, helper):
    files = pinned(photographs(WORTH_TWO + 7))
    expected, _, _ = decoding.decode(files, DEVICE)
    for each in (helper, helper, None, replace(helper, is_needed=False), helper):
        calls.clear()
        images, problems, counts = decoding.decode(files, DEVICE, each)
        assert len(set(calls)) == (2 if each is helper else 1)
        assert not problems
        assert counts["decoded_on_device"] == len(files)
        assert all(map(torch.equal, images, expected))


def test_few_files_are_left_to_one_thread(calls, helper):
    decoding.decode(pinned(photographs(WORTH_TWO - 1)), DEVICE, helper)
    assert set(calls) == {threading.current_thread()}


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("place", range(4))
def test_a_bad_file_is_named_whichever_thread_has_it(place, helper):
    files = photographs(WORTH_TWO)
    good = pinned(files)
    expected, _, _ = decoding.decode(good, DEVICE)
    files[place] = files[place][: len(files[place]) // 2]
    _, problems, _ = decoding.decode(pinned(files), DEVICE, helper)
    assert set(problems) == {place}
    images, problems, _ = decoding.decode(good, DEVICE, helper)
    assert not problems
    assert all(map(torch.equal, images, expected))


def test_where_memory_lacks_for_two_one_thread_decodes_all_later_batches(calls, helper, monkeypatch):
    nvjpeg = library()

    def without_room(function, *arguments, call=nvjpeg.call):
        call(function, *arguments)
        if threading.current_thread().name.startswith("helper"):
            raise DecodingError(f"{function}: out of memory")

    files = pinned(photographs(WORTH_TWO))
    expected, _, _ = decoding.decode(files, DEVICE)
    with monkeypatch.context() as patch:
        patch.setattr(nvjpeg, "call", without_room)
        images, problems, counts = decoding.decode(files, DEVICE, helper)
    assert counts["decoded_on_device"] == len(files)
    assert not problems
    assert all(map(torch.equal, images, expected))
    calls.clear()
    decoding.decode(files, DEVICE, helper)
    assert calls == [threading.current_thread()]
