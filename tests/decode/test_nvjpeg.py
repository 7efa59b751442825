"""How nvJPEG is called, which a library that only takes notes can tell without JPEG engines."""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from fastload.data.jpegs import Jpegs
from fastload.decode import engines
from fastload.decode.engines import WORTH_TWO
from fastload.decode.helper import Helper
from fastload.decode.nvjpeg import DecodingError, State
from fastload.streams import DoneFence
from tests.data.test_jpegs import batch

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
    state.set_batch(len(files))
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


@pytest.mark.parametrize("fails", [[], [2]])
def test_it_waits_until_buffers_have_grown(fails):
    """The next call may write to the same planes."""
    library = Notes(fails)
    assert state_of(library).prepare(BATCH, 0, lambda: library.calls.append("wait"))
    assert library.calls == [16, "decode", "wait"]


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
    assert library.calls == [16, "decode", "decode", 8, 16, "decode"]


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


class Hardware(engines.Engines):
    """Engines that a library drives which only takes notes."""

    def __init__(self):
        self.library = Notes()
        super().__init__(self.library, torch.device("cuda", 0))

    def calls(self, helper=None, count=2 * WORTH_TWO, height=64):
        """What the library is told to decode a batch."""
        self.library.calls.clear()
        planes = np.arange(3) * 128 * height + np.zeros((count, 1), int)
        arrays = np.full(count, 2**20), np.full(count, 9000), planes, np.full(count, 128)
        self.decode(Jpegs.of(*arrays), 0, helper)
        return self.library.calls


@pytest.fixture
def hardware(monkeypatch):
    for name, instead in (("fence_on_current_stream", lambda _: DoneFence()), ("wait_for_current_stream", lambda _: 0)):
        monkeypatch.setattr(engines, name, instead)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    return Hardware()


@pytest.fixture
def helper():
    with ThreadPoolExecutor(1) as thread:
        yield Helper(thread, is_needed=True)


def test_buffers_for_a_second_thread_grow_with_those_of_the_first(hardware, helper):
    """With the first batch, and with larger images, whether help is needed or not."""
    unneeded = replace(helper, is_needed=False)
    assert hardware.calls(unneeded) == [64, "decode", 32, "decode", "decode"]
    assert hardware.calls(unneeded) == ["decode"]
    assert hardware.calls(helper) == [32, "decode", "decode"]
    assert hardware.calls(helper) == ["decode", "decode"]
    assert hardware.calls(unneeded, height=128) == [64, "decode", "decode", "decode"]
    assert hardware.calls(helper, height=128) == [32, "decode", "decode"]


def test_a_second_thread_that_was_never_offered_takes_no_memory(hardware):
    assert hardware.calls() == [64, "decode", "decode"]


def test_few_files_are_left_to_one_thread(hardware, helper):
    few = WORTH_TWO - 1
    assert hardware.calls(helper, count=few) == [few, "decode", "decode"]
    assert hardware.calls(helper, count=few) == ["decode"]


def test_one_thread_decodes_all_later_batches_where_memory_lacks_for_two(hardware, helper):
    hardware.calls(helper)
    hardware.library.fails = [2]  # of the two halves
    assert hardware.calls(helper)[-1] == "decode"
    hardware.library.fails = []
    assert "decode" in hardware.calls(helper)
    assert hardware.calls(helper) == ["decode"]


def test_a_batch_is_decoded_by_one_thread_where_a_second_cannot_be_started(hardware):
    class Refusing(ThreadPoolExecutor):
        asked = 0

        def submit(self, *_):
            self.asked += 1
            raise RuntimeError("can't start new thread")

    refusing = Refusing(1)
    for _ in range(2):
        calls = hardware.calls(Helper(refusing, is_needed=True))
    assert calls == ["decode"]
    assert refusing.asked == 1
