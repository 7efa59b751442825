"""How nvJPEG is called, which a library that only takes notes can tell without JPEG engines."""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest
import torch

from fastload.decode import engines
from fastload.decode.nvjpeg import DecodingError, State
from fastload.streams import DoneFence
from tests.decode.test_files import batch

BATCH = batch([9000] * 16, heights=[375] * 16, widths=[500] * 16)


class Notes:
    """A library that notes the size of each batch that it is told, or ``"decode"``, and fails in some calls."""

    def __init__(self, fails=()):
        self.calls, self.fails = [], fails

    def call(self, function, *arguments):
        if function in {"nvjpegCreateEx", "nvjpegJpegStateCreate"}:
            return
        self.calls.append(arguments[2] if function == "nvjpegDecodeBatchedInitialize" else "decode")
        if len(self.calls) in self.fails:
            raise DecodingError(f"{function}: out of memory")


def state_of(library):
    return State(library, ctypes.c_void_p())


def decode(state, files):
    state.prepare(files, 0, lambda: None)
    state.decode(files, 0)


def test_buffers_grow_before_the_first_batch_and_stay():
    library = Notes()
    state = state_of(library)
    for files in (BATCH, BATCH, *BATCH.halves(), BATCH):
        decode(state, files)
    assert library.calls == [16, "decode", "decode", "decode", 8, "decode", "decode", 16, "decode"]


def test_a_batch_is_decoded_where_memory_lacks_to_make_buffers_grow():
    library = Notes(fails=[2])
    state = state_of(library)
    for _ in range(2):
        decode(state, BATCH)
    assert library.calls == [16, "decode", 16, "decode", "decode"]


def test_buffers_for_a_batch_serve_smaller_ones():
    library = Notes()
    state = state_of(library)
    state.prepare(BATCH, 0, lambda: None)
    for files in (*BATCH.halves(), BATCH):
        decode(state, files)
    assert library.calls == [16, "decode", 8, "decode", "decode", 16, "decode"]


def test_a_batch_that_fails_leaves_the_state_ready_for_the_next():
    library = Notes(fails=[3])
    state = state_of(library)
    with pytest.raises(DecodingError):
        decode(state, BATCH)
    decode(state, BATCH)
    assert library.calls == [16, "decode", "decode", 16, "decode", "decode"]  # growing again, for it may be why


def test_buffers_grow_with_the_next_batch_where_the_first_was_bad():
    library = Notes(fails=[2, 4])
    state = state_of(library)
    with pytest.raises(DecodingError):
        decode(state, BATCH)
    for _ in range(2):
        decode(state, BATCH)
    assert library.calls == [16, "decode", 16, "decode", 16, "decode", "decode", "decode"]


def test_a_size_that_fails_is_told_again():
    library = Notes(fails=[4])
    state = state_of(library)
    decode(state, BATCH)
    with pytest.raises(DecodingError):
        decode(state, BATCH.halves()[0])
    decode(state, BATCH)
    assert library.calls == [16, "decode", "decode", 8, 16, "decode", "decode"]


def test_engines_that_two_threads_ask_for_at_once_are_the_same(monkeypatch):
    made = []

    @cache
    def slowly_made(device):
        made.append(device)
        time.sleep(0.1)
        return object()

    monkeypatch.setattr(engines, "_engines", slowly_made)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(engines.engines, ["cuda:0", "cuda:0"])
    assert first is second
    assert len(made) == 1


@pytest.fixture
def hardware(monkeypatch):
    """Engines that a library drives which only takes notes."""
    for name, instead in (("fence_on_current_stream", lambda _: DoneFence()), ("wait_for_current_stream", lambda _: 0)):
        monkeypatch.setattr(engines, name, instead)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)

    def decode_with(helper):
        arrays = np.full(64, 2**20), np.full(64, 9000), np.arange(3) * 8192 + np.zeros((64, 1), int), np.full(64, 128)
        hardware.decode(*(array.astype(np.uint64) for array in arrays), 0, helper)

    library = Notes()
    hardware = engines.Engines(library, torch.device("cuda", 0))
    return library, decode_with


def test_all_buffers_grow_with_the_first_batch_that_two_threads_decode(hardware):
    library, decode_with = hardware
    with ThreadPoolExecutor(1) as helper:
        decode_with(helper)
        assert sorted(library.calls, key=str) == [32, 32, 64, *["decode"] * 4]  # whole, half, and the two halves
        for each, calls in ((None, [64, "decode"]), (helper, [32, "decode", "decode"]), (helper, ["decode", "decode"])):
            library.calls.clear()
            decode_with(each)
            assert library.calls == calls


def test_a_batch_is_decoded_by_one_thread_where_a_second_cannot_be_started(hardware):
    class Refusing(ThreadPoolExecutor):
        asked = 0

        def submit(self, *_):
            self.asked += 1
            raise RuntimeError("can't start new thread")

    library, decode_with = hardware
    refusing = Refusing(1)
    for _ in range(2):
        library.calls.clear()
        decode_with(refusing)
    assert library.calls == ["decode"]
    assert refusing.asked == 1
