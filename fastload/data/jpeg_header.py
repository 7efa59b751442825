"""What the headers of a JPEG file tell without decoding it: whether hardware decoders accept it, and its scans."""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Header", "scan", "scans"]

# Markers, ITU-T T.81 table B.1; each follows the byte MARK.
MARK = 0xFF
SOF0, DHT, RST0, EOI, SOS, DQT, DRI, APP0, APP1, APP14, COM = (
    *(0xC0, 0xC4, 0xD0, 0xD9, 0xDA, 0xDB, 0xDD),
    *(0xE0, 0xE1, 0xEE, 0xFE),
)
BEFORE_SCAN = {SOF0, DHT, SOS, DQT, DRI, COM, *range(APP0, APP0 + 16)}

BLOCK = 8  # pixels a side
PRECISION = 8  # bits
QUANTIZATION_TABLES = range(4)  # identifiers of tables with 8-bit entries
HUFFMAN_TABLES = {0x00, 0x01, 0x10, 0x11}  # identifiers in a baseline file: two for DC coefficients, two for AC
# Luma has as many samples as chroma or twice as many along each side: 4:4:4, 4:2:2, 4:4:0, 4:2:0. Grey has 1x1.
LUMA_SAMPLING = {0x11, 0x21, 0x12, 0x22}
COMPONENTS = b"\1\2\3"  # identifiers of Y, Cb and Cr; others may mean RGB
YCBCR = 1  # colour transform in an Adobe segment
# Symbols of coefficients (T.81 tables F.1 and F.2): DC of up to 11 bits, AC of up to 10 bits after a run of zeros.
DC_SYMBOLS = frozenset(range(12))
AC_SYMBOLS = frozenset({0x00, 0xF0, *(run << 4 | size for run in range(16) for size in range(1, 11))})
# The shortest block has two codes of one bit: its DC coefficient, and the end of the block.
BITS_A_BLOCK = 2

# An orientation other than 1: an EXIF entry (any numeric type, one value) in either byte order, or an XMP attribute.
ROTATED = re.compile(
    rb"\x01\x12\x00[\x01-\x0d]\x00\x00\x00\x01(?!\x00\x01)"
    rb"|\x12\x01[\x01-\x0d]\x00\x01\x00\x00\x00(?!\x01\x00)"
    rb'|tiff:Orientation(?:="|>)(?!1)',
    re.DOTALL,
)
# A marker in coded data: 0 behind MARK stands for a byte of data, and restarts and fill bytes end no scan.
END_OF_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
EXIF = b"Exif\0\0"
TIFF = (b"II*\0", b"MM\0*")


class Header(NamedTuple):
    """Height and width of an image in pixels."""

    height: int
    width: int


class _UnusualError(Exception):
    """The file has a feature that some hardware decoder rejects, or is damaged."""


def scan(data: bytes | memoryview) -> Header | None:
    """The header of a file that hardware decoders accept; None for any other file.

    >>> import io
    >>> from PIL import Image
    >>> Image.new("RGB", (40, 30)).save(file := io.BytesIO(), "JPEG")
    >>> scan(file.getvalue())
    Header(height=30, width=40)
    >>> scan(file.getvalue()[:-2]) is None  # the end is missing
    True

    Accepted are baseline JPEGs: 8 bits, Huffman codes, one scan, no EXIF rotation, and either grey or YCbCr with luma
    at one or two times the resolution of chroma along each side. Checked are segments, tables, the markers in the coded
    data, and that it is long enough for the image's size. The codes themselves are not read. None does not mean that
    the file is bad: a software decoder has to decide.
    """
    try:
        return _scan(data)
    except (_UnusualError, IndexError, struct.error):
        return None


def scans(data: bytes, most: int) -> int:
    """How many scans a JPEG file has, counted up to ``most``; 0 for other files."""
    found, position = 0, 2
    if not data.startswith(b"\xff\xd8"):
        return 0
    while found < most and (marker := END_OF_SCAN.search(data, position)) and marker[0][1] != EOI:
        found += marker[0][1] == SOS
        position = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2], "big")
    return found


def _scan(data: bytes | memoryview) -> Header:
    segments, start = _segments(data)
    _require(segments.keys() <= BEFORE_SCAN)
    _check_application(segments)
    frame, scan_header = _only(segments[SOF0]), _only(segments[SOS])
    header, sampling = _frame(frame)
    _check_tables(segments, frame, scan_header)
    columns, rows = sampling[0] >> 4, sampling[0] & 15  # of luma; each other component has one block in a unit
    units = ceil(header.width / (BLOCK * columns)) * ceil(header.height / (BLOCK * rows))
    blocks = units * (columns * rows + len(sampling) - 1)
    _check_coded(data, start, restarts=_restarts(segments, units), least=blocks * BITS_A_BLOCK / 8)
    return header


def _require(condition: bool) -> None:
    if not condition:
        raise _UnusualError


def _only(segments: list[bytes]) -> bytes:
    _require(len(segments) == 1)
    return segments[0]


def _segments(data: bytes | memoryview) -> tuple[dict[int, list[bytes]], int]:
    """The segments before the coded data, by marker, and the offset of the coded data."""
    _require(data[:2] == b"\xff\xd8")
    segments: dict[int, list[bytes]] = {SOF0: []}
    position, marker = 2, 0
    while marker != SOS:
        prefix, marker, length = struct.unpack_from(">BBH", data, position)
        end = position + 2 + length
        _require(prefix == MARK and position + 4 <= end <= len(data))
        segments.setdefault(marker, []).append(bytes(data[position + 4 : end]))
        position = end
    return segments, position


def _check_application(segments: dict[int, list[bytes]]) -> None:
    """Require no rotation, and the colour space that hardware decoders assume."""
    metadata = segments.get(APP1, [])
    _require(not any(ROTATED.search(segment) for segment in metadata))
    exif = [segment for segment in metadata if segment.startswith(EXIF)]
    _require(len(exif) <= 1)  # EXIF data that is split over several segments is not searched
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
    """Require that the scan has all components of the frame, all coefficients, and every table that it refers to."""
    components = len(frame[6::3])
    _require(len(scan_header) == 4 + 2 * components and scan_header[0] == components)
    _require(scan_header[1:-3:2] == frame[6::3] and scan_header[-3:] == b"\x00\x3f\x00")
    quantization = {table for segment in segments.get(DQT, []) for table in _quantization(segment)}
    huffman = frozenset[int]().union(*map(_huffman, segments.get(DHT, [])))
    used = {table for pair in scan_header[2:-3:2] for table in (pair >> 4, 0x10 | pair & 15)}
    _require(quantization.issuperset(frame[8::3]) and huffman >= used)


@lru_cache(maxsize=64)  # files of one encoder at one quality have the same
def _quantization(segment: bytes) -> bytes:
    """The identifiers of a segment's tables: one byte each, followed by 64 entries."""
    tables, rest = divmod(len(segment), 65)
    _require(tables > 0 and rest == 0)
    for start in range(0, len(segment), 65):
        _require(segment[start] in QUANTIZATION_TABLES and 0 not in segment[start + 1 : start + 65])
    return segment[::65]


@lru_cache(maxsize=64)  # most files have the example tables of T.81 annex K
def _huffman(segment: bytes) -> frozenset[int]:
    """The identifiers of a segment's tables: one byte each, followed by 16 numbers of codes, and the symbols."""
    identifiers, start = set(), 0
    while start < len(segment):
        identifier, lengths = segment[start], segment[start + 1 : start + 17]
        end = start + 17 + sum(lengths)
        symbols = segment[start + 17 : end]
        _require(end <= len(segment) and identifier in HUFFMAN_TABLES)
        distinct = set(symbols)
        _require(0 < len(distinct) == len(symbols) and distinct <= (AC_SYMBOLS if identifier >> 4 else DC_SYMBOLS))
        # The codes leave room for one more: the code made of ones alone is reserved (T.81 annex C).
        _require(sum(count << 16 - length for length, count in enumerate(lengths, 1)) < 1 << 16)
        identifiers.add(identifier)
        start = end
    return frozenset(identifiers)


def _restarts(segments: dict[int, list[bytes]], units: int) -> int:
    """The number of restart markers in the coded data: one after each interval of units, none at the end."""
    intervals = segments.get(DRI, [b"\0\0"])
    (interval,) = struct.unpack(">H", intervals[-1])
    return (units - 1) // interval if interval else 0


def _check_coded(data: bytes | memoryview, start: int, restarts: int, least: float) -> None:
    """Require restart markers in order and no other markers before the end, and at least ``least`` bytes of codes."""
    _require(len(data) - start >= len(b"\xff\xd9"))
    coded = np.frombuffer(data, np.uint8, offset=start)
    marks = (coded[:-1] == MARK).view(np.uint8)
    # 1 where a marker begins: 0 behind MARK stands for a byte of codes. In place, since new memory costs more.
    found = np.minimum(marks, coded[1:], out=marks).view(np.bool_)
    end = _end_of_restarts(coded, found, restarts) if restarts else int(found.argmax())
    _require(bool(found[end]) and coded[end + 1] == EOI)
    length = end - 2 * restarts
    if length < 2 * least:  # escapes have one byte that is no code: they are counted where they may matter
        length -= int(np.count_nonzero(coded[:end] == MARK)) - restarts
    _require(length >= least)


def _end_of_restarts(coded: NDArray[np.uint8], found: NDArray[np.bool_], restarts: int) -> int:
    """The place of the marker behind all restart markers, which have to be in order."""
    places = np.flatnonzero(found)[: restarts + 1]
    _require(len(places) == restarts + 1)
    _require(bool((coded[places[:-1] + 1] == RST0 + np.arange(restarts) % 8).all()))
    return int(places[-1])
