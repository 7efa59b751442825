"""Which JPEG files a hardware decoder takes, from their bytes and without decoding them."""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np

__all__ = ["Header", "scan"]

# Markers, ITU-T T.81 table B.1; each stands behind the byte MARK.
MARK = 0xFF
SOF0, DHT, RST0, EOI, SOS, DQT, DRI, APP0, APP1, APP14, COM = (
    *(0xC0, 0xC4, 0xD0, 0xD9, 0xDA, 0xDB, 0xDD),
    *(0xE0, 0xE1, 0xEE, 0xFE),
)
BEFORE_SCAN = {SOF0, DHT, SOS, DQT, DRI, COM, *range(APP0, APP0 + 16)}

BLOCK = 8  # pixels a side
PRECISION = 8  # bits
QUANTIZATION_TABLES = range(4)  # by name, with 8 bits for each entry
HUFFMAN_TABLES = {0x00, 0x01, 0x10, 0x11}  # a baseline file's: two for DC coefficients, and two for AC
# Chroma is not above luma, which may have twice its pixels a side: 4:4:4, 4:2:2, 4:4:0, 4:2:0. Grey has 1x1.
LUMA_SAMPLING = {0x11, 0x21, 0x12, 0x22}
COMPONENTS = b"\1\2\3"  # what they are called where they are Y, Cb and Cr; other names may mean RGB
YCBCR = 1  # Adobe's code
# Sizes of coefficients (T.81 tables F.1 and F.2): up to 11 bits of DC, up to 10 of AC behind a run of zeros.
DC_SYMBOLS = frozenset(range(12))
AC_SYMBOLS = frozenset({0x00, 0xF0, *(run << 4 | size for run in range(16) for size in range(1, 11))})
# A block has a code for its DC coefficient and at least one, that for the end, for the others: no fewer than 2 bits.
BITS_A_BLOCK = 2

# An orientation that is not 1: an entry of an EXIF table (any number, one value) in either byte order, or in XMP.
TURNED = re.compile(
    rb"\x01\x12\x00[\x01-\x0d]\x00\x00\x00\x01(?!\x00\x01)"
    rb"|\x12\x01[\x01-\x0d]\x00\x01\x00\x00\x00(?!\x01\x00)"
    rb'|tiff:Orientation(?:="|>)(?!1)',
    re.DOTALL,
)
EXIF = b"Exif\0\0"
TIFF = (b"II*\0", b"MM\0*")


class Header(NamedTuple):
    """Height and width in pixels."""

    height: int
    width: int


class _UnusualError(Exception):
    """The file is not one that every hardware decoder takes, or not whole."""


def scan(data: bytes) -> Header | None:
    """The header of a file that hardware decoders take, or None for any other.

    >>> import io
    >>> from PIL import Image
    >>> Image.new("RGB", (40, 30)).save(file := io.BytesIO(), "JPEG")
    >>> scan(file.getvalue())
    Header(height=30, width=40)
    >>> scan(file.getvalue()[:-2]) is None  # the end is missing
    True

    They take baseline JPEGs: 8 bits, Huffman codes, one scan, upright, and either grey or YCbCr with luma of one or
    two times the chroma's resolution along each side. Segments, tables and the markers within the coded data are
    checked, and that there is as much of it as the size needs; but the codes themselves are not read. None is no
    verdict on the file: it says that something is unusual, for a decoder in software to look at.
    """
    try:
        return _scan(data)
    except (_UnusualError, IndexError, struct.error):
        return None


def _scan(data: bytes) -> Header:
    segments, start = _segments(data)
    _require(segments.keys() <= BEFORE_SCAN)
    _check_application(segments)
    frame, scan_header = _only(segments[SOF0]), _only(segments[SOS])
    header, sampling = _frame(frame)
    _check_tables(segments, frame, scan_header)
    columns, rows = max(factor >> 4 for factor in sampling), max(factor & 15 for factor in sampling)
    units = ceil(header.width / (BLOCK * columns)) * ceil(header.height / (BLOCK * rows))
    blocks = units * sum((factor >> 4) * (factor & 15) for factor in sampling)
    _check_coded(data, start, restarts=_restarts(segments, units), least=blocks * BITS_A_BLOCK / 8)
    return header


def _require(condition: bool) -> None:
    if not condition:
        raise _UnusualError


def _only(segments: list[bytes]) -> bytes:
    _require(len(segments) == 1)
    return segments[0]


def _segments(data: bytes) -> tuple[dict[int, list[bytes]], int]:
    """What stands before the coded data, by marker, and where that begins."""
    _require(data[:2] == b"\xff\xd8")
    segments: dict[int, list[bytes]] = {SOF0: []}
    position, marker = 2, 0
    while marker != SOS:
        prefix, marker, length = struct.unpack_from(">BBH", data, position)
        end = position + 2 + length
        _require(prefix == MARK and position + 4 <= end <= len(data))
        segments.setdefault(marker, []).append(data[position + 4 : end])
        position = end
    return segments, position


def _check_application(segments: dict[int, list[bytes]]) -> None:
    """Upright, and with the colours that hardware assumes."""
    described = segments.get(APP1, [])
    _require(not any(TURNED.search(segment) for segment in described))
    exif = [segment for segment in described if segment.startswith(EXIF)]
    _require(len(exif) <= 1)  # several are parts of one
    _require(all(segment.startswith(TIFF, len(EXIF)) for segment in exif))
    for segment in segments.get(APP14, []):
        if segment.startswith(b"Adobe"):
            _require(segment[11] == YCBCR or segments[SOF0][0][5] == 1)


def _frame(frame: bytes) -> tuple[Header, bytes]:
    """Height and width, and each component's sampling factors."""
    precision, height, width, components = struct.unpack_from(">BHHB", frame)
    _require(precision == PRECISION and height > 0 and width > 0 and len(frame) == 6 + 3 * components)
    sampling = frame[7::3]
    if components == 1:
        _require(sampling == b"\x11")
    else:
        _require(frame[6::3] == COMPONENTS and sampling[0] in LUMA_SAMPLING and sampling[1:] == b"\x11\x11")
    return Header(height, width), sampling


def _check_tables(segments: dict[int, list[bytes]], frame: bytes, scan_header: bytes) -> None:
    """The scan has all components of the frame, all their coefficients, and every table that they name."""
    components = len(frame[6::3])
    _require(len(scan_header) == 4 + 2 * components and scan_header[0] == components)
    _require(scan_header[1:-3:2] == frame[6::3] and scan_header[-3:] == b"\x00\x3f\x00")
    quantization = {name for segment in segments.get(DQT, []) for name in _quantization(segment)}
    huffman = frozenset[int]().union(*map(_huffman, segments.get(DHT, [])))
    used = {name for pair in scan_header[2:-3:2] for name in (pair >> 4, 0x10 | pair & 15)}
    _require(quantization.issuperset(frame[8::3]) and huffman >= used)


def _quantization(segment: bytes) -> bytes:
    """The names of the tables, of 64 bytes each."""
    names, rest = divmod(len(segment), 65)
    _require(names > 0 and rest == 0)
    for start in range(0, len(segment), 65):
        _require(segment[start] in QUANTIZATION_TABLES and 0 not in segment[start + 1 : start + 65])
    return segment[::65]


@lru_cache(maxsize=64)  # most files have the tables that T.81 annex K suggests
def _huffman(segment: bytes) -> frozenset[int]:
    """The names of the tables."""
    names, start = set(), 0
    while start < len(segment):
        name, lengths = segment[start], segment[start + 1 : start + 17]
        end = start + 17 + sum(lengths)
        symbols = segment[start + 17 : end]
        _require(end <= len(segment) and name in HUFFMAN_TABLES)
        distinct = set(symbols)
        _require(0 < len(distinct) == len(symbols) and distinct <= (AC_SYMBOLS if name >> 4 else DC_SYMBOLS))
        # As fractions of all codes, which stay short of 1: the code of ones alone is not given away (T.81 annex C).
        _require(sum(count << 16 - length for length, count in enumerate(lengths, 1)) < 1 << 16)
        names.add(name)
        start = end
    return frozenset(names)


def _restarts(segments: dict[int, list[bytes]], units: int) -> int:
    """How many markers the coded data has: one after so many units, but none at the end."""
    intervals = segments.get(DRI, [b"\0\0"])
    (interval,) = struct.unpack(">H", intervals[-1])
    return (units - 1) // interval if interval else 0


def _check_coded(data: bytes, start: int, restarts: int, least: float) -> None:
    """The coded data has its restart markers in order and no others, then ends, and is ``least`` bytes or more."""
    coded = np.frombuffer(data, np.uint8, offset=start)
    escapes = np.flatnonzero(coded[:-1] == MARK)
    markers = coded[escapes + 1]
    places = np.flatnonzero(markers)[: restarts + 1]
    _require(len(places) == restarts + 1 and bool(markers[places[-1]] == EOI))
    _require(bool((markers[places[:-1]] == RST0 + np.arange(restarts) % 8).all()))
    length = int(escapes[places[-1]]) - int(places[-1]) - restarts  # less an escaped byte or a marker's two each
    _require(length >= least)
