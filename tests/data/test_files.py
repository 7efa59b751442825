"""Files read into memory that is there, also where they change meanwhile."""

import errno
import os

import pytest

from fastload.data import files
from fastload.data.files import read, read_into
from fastload.data.pixels import UndecodableError

CONTENT = bytes(range(256)) * 800  # more than are read at once of a file that does not tell its size


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


def room(size):
    return memoryview(bytearray(size))


def test_contents_stay_where_they_are():
    assert read_into(room(10), b"abc") == b"abc"
    assert isinstance(read_into(room(10), b"abc"), bytes)


@pytest.mark.parametrize("size", [len(CONTENT) + 1, 2 * len(CONTENT)])
def test_a_path_is_read_into_the_room(path, size):
    there = room(size)
    found = read_into(there, path)
    assert isinstance(found, memoryview)
    assert found == there[: len(CONTENT)] == CONTENT


@pytest.mark.parametrize("size", [0, 1, len(CONTENT) - 1, len(CONTENT)])
def test_without_room_it_is_read_apart(path, size):
    assert read_into(room(size), str(path)) == read(path) == CONTENT


@pytest.mark.parametrize("size", [0, 1, len(CONTENT), len(CONTENT) + 1, 2 * len(CONTENT)])
@pytest.mark.parametrize("told", [0, 1, len(CONTENT) - 1, len(CONTENT) + 1, 2 * len(CONTENT) - 1])
def test_a_file_that_grows_or_shrinks_meanwhile_is_what_is_read(path, monkeypatch, told, size):
    monkeypatch.setattr(files, "_told", lambda _: told)
    assert read_into(room(size), path) == CONTENT


def test_a_file_that_grows_beyond_what_is_read_is_refused(path, monkeypatch):
    monkeypatch.setattr(files, "_told", lambda _: 1)
    for most, size in ((1000, 10), (1000, 1001), (1000, 2 * len(CONTENT))):
        monkeypatch.setattr(files, "MOST_BYTES", most)
        with pytest.raises(UndecodableError, match="at most 1,000 are read"):
            read_into(room(size), path)
    monkeypatch.setattr(files, "MOST_BYTES", len(CONTENT))
    assert read_into(room(2 * len(CONTENT)), path) == CONTENT


def test_an_empty_file_is_empty(path):
    path.write_bytes(b"")
    assert bytes(read_into(room(5), path)) == bytes(read_into(room(0), path)) == b""


@pytest.mark.parametrize("size", [0, 100_000])
def test_what_is_no_file_is_refused_and_closed(tmp_path, size):
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else []
    for path, error in ((tmp_path, errno.EISDIR), (tmp_path / "none", errno.ENOENT)):
        with pytest.raises(OSError, match=os.strerror(error)) as raised:
            read_into(room(size), path)
        assert raised.value.filename in (path, str(path))
    with pytest.raises(UndecodableError, match="no regular file"):
        read_into(room(size), tmp_path / "pipe")
    assert (os.listdir("/proc/self/fd") if before else []) == before
