"""Which files the scan takes for a hardware decoder, and which it leaves to Pillow."""

from hypothesis import given
from hypothesis import strategies as st

from fastload.data.jpeg_header import scan
from tests.counts import examples
from tests.files import BASELINE, BROKEN, OTHERS, inserted, jpeg, replaced, segments, turned, without

SOF, DHT, DQT, SOS, DRI, APP1 = 0xC0, 0xC4, 0xDB, 0xDA, 0xDD, 0xE1
START = segments(jpeg())[-1][2]  # of the coded data
RESTARTS = jpeg(restart_marker_blocks=2)


def taken(files):
    return {name for name, data in files.items() if scan(data) is not None}


def test_baseline_files_are_for_the_hardware():
    sizes = {"one pixel": (1, 1), "odd": (17, 33), "flat": (480, 640)}
    assert {name: scan(data) for name, data in BASELINE.items()} == {
        name: sizes.get(name, (48, 72)) for name in BASELINE
    }


def test_others_are_not():
    assert taken(OTHERS | BROKEN) == set()


UNUSUAL = {
    "a size that so few bytes cannot fill": replaced(jpeg(), SOF, 1, b"\x40\0\x40\0"),
    "two frames": inserted(jpeg(), SOF, bytes([8, 0, 48, 0, 72, 1, 1, 0x11, 0])),
    "two components": replaced(jpeg(), SOF, 5, b"\2"),
    "luma of four times the chroma": replaced(jpeg(), SOF, 7, b"\x41"),
    "chroma above luma": replaced(jpeg(), SOF, 10, b"\x22"),
    "a missing quantisation table": replaced(jpeg(), SOF, 11, b"\3"),
    "no quantisation table": without(jpeg(), DQT),
    "a quantisation table with a zero": replaced(jpeg(), DQT, 5, b"\0"),
    "a quantisation table of 16 bits": replaced(jpeg(), DQT, 0, b"\x10"),
    "a missing Huffman table": replaced(jpeg(), SOS, 2, b"\x20"),
    "a third Huffman table": replaced(jpeg(), DHT, 0, b"\2"),
    "more codes than there are": replaced(jpeg(), DHT, 1, b"\3"),
    "a code of ones alone": inserted(jpeg(), DHT, bytes([0, 2, *[0] * 15, 0, 1])),
    "a coefficient of 12 bits": replaced(jpeg(), DHT, 17, b"\x0c"),
    "a symbol given twice": replaced(jpeg(), DHT, 17, b"\1\1"),
    "part of the coefficients": replaced(jpeg(), SOS, 8, b"\x20"),
    "low bits later": replaced(jpeg(), SOS, 9, b"\1"),
    "one component first": replaced(jpeg(), SOS, 0, b"\1"),
    "a marker among the coded data": jpeg()[: START + 9] + b"\xff\xd0" + jpeg()[START + 9 :],
    "a second scan": jpeg()[:-2] + jpeg()[segments(jpeg())[-1][1] :],
    "fill bytes": jpeg()[:-2] + b"\xff\xff\xd9",
    "no end": jpeg()[:-2],
    "half an end": jpeg()[:-1],
    "fewer restarts than announced": replaced(RESTARTS, DRI, 0, b"\0\1"),
    "more restarts than announced": replaced(RESTARTS, DRI, 0, b"\0\4"),
    "restarts out of order": RESTARTS.replace(b"\xff\xd1", b"\xff\xd3", 1),
    "restarts unannounced": without(RESTARTS, DRI),
    "RGB by Adobe's word": inserted(jpeg(), 0xEE, b"Adobe\0\x64\0\0\0\0\0"),
    "RGB by its components' names": jpeg(keep_rgb=True),
    "an arithmetic code": jpeg().replace(b"\xff\xc0", b"\xff\xc9", 1),
    "turned by XMP": inserted(jpeg(), APP1, b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>'),
    "EXIF in two parts": inserted(turned(1), APP1, b"Exif\0\0MM\0*"),
    "EXIF of another sort": inserted(jpeg(), APP1, b"Exif\0\0BigT"),
}


def test_what_is_unusual_is_left_to_pillow():
    assert taken(UNUSUAL) == set()


def test_orientation_1_is_upright_in_xmp_too():
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="1"/>'
    assert scan(inserted(jpeg(), APP1, xmp)) == (48, 72)


def test_an_escape_is_one_byte_of_codes():
    """An image of 48x72 has 90 blocks, which take 180 bits: 23 bytes."""
    before = jpeg()[:START]
    for codes in (b"\xff\0", b"\0", b"\xff\0\1"):
        bytes_each = len(codes.replace(b"\xff\0", b"\xff"))
        enough = -(-23 // bytes_each)
        assert scan(before + codes * enough + b"\xff\xd9") == (48, 72)
        assert scan(before + codes * (enough - 1) + b"\xff\xd9") is None


def test_a_file_may_be_a_view_of_memory():
    for file in (BASELINE | OTHERS | BROKEN | UNUSUAL).values():
        assert scan(memoryview(bytearray(file))) == scan(file)


@examples(full=300, here=60)
@given(st.sampled_from(sorted(BASELINE)), st.data())
def test_no_part_of_a_file_is_taken_for_it(name, data):
    file = BASELINE[name]
    end = file.rindex(b"\xff\xd9") if name != "something behind the end" else len(jpeg()) - 2
    assert scan(file[: data.draw(st.integers(0, end + 1))]) is None


@examples(full=300, here=60)
@given(st.binary(max_size=200), st.sampled_from(["alone", "behind a beginning", "instead of the coded data"]))
def test_any_bytes_are_answered(noise, place):
    before = {"alone": b"", "behind a beginning": jpeg()[:20], "instead of the coded data": jpeg()[:START]}[place]
    assert scan(before + noise) is None or b"\xff\xd9" in noise
