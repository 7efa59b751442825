"""How nvJPEG is called, which a library that only takes notes can tell without JPEG engines."""

import ctypes

import pytest

from fastload.decode.nvjpeg import DecodingError, State
from tests.decode.test_files import batch

BATCH = batch([9000] * 16, heights=[375] * 16, widths=[500] * 16)


class Notes:
    """A library that notes the size of each batch that it is told, or ``"decode"``, and fails in some calls."""

    def __init__(self, fails=()):
        self.calls, self.fails = [], fails

    def call(self, function, *arguments):
        if function == "nvjpegJpegStateCreate":
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


def test_a_batch_that_fails_leaves_the_state_ready_for_the_next():
    library = Notes(fails=[3])
    state = state_of(library)
    with pytest.raises(DecodingError):
        decode(state, BATCH)
    decode(state, BATCH)
    assert library.calls == [16, "decode", "decode", 16, "decode"]
