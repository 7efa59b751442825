"""Image files in memory, of every sort that a data set may hold."""

import io
import struct

import numpy as np
from PIL import Image, ImageOps


def picture(height=48, width=72, mode="RGB", seed=0):
    """Something smooth with a little noise, so that its JPEG has coefficients of all sorts."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (3 + channel) + seed) + np.cos(y / (5 + channel)) for channel in range(3)]
    values = 128 + 50 * np.stack(waves, axis=-1) + rng.normal(0, 12, (height, width, 3))
    return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert(mode)


def saved(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpeg(height=48, width=72, mode="RGB", seed=0, **options):
    return saved(picture(height, width, mode, seed), **options)


def turned(orientation, **options):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(exif=exif, **options)


def segments(data):
    """The segments before the coded data, as (marker, where its marker stands, where it ends)."""
    position, marker, found = 2, 0, []
    while marker != 0xDA:
        marker, length = struct.unpack_from(">xBH", data, position)
        found.append((marker, position, position + 2 + length))
        position += 2 + length
    return found


def without(data, marker):
    for found, start, end in reversed(segments(data)):
        if found == marker:
            data = data[:start] + data[end:]
    return data


def inserted(data, marker, content):
    """With one more segment, the first."""
    return data[:2] + struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content + data[2:]


def replaced(data, marker, offset, value):
    """With other bytes in the first segment of a marker, ``offset`` counted from behind its length."""
    start = next(start for found, start, _ in segments(data) if found == marker) + 4 + offset
    return data[:start] + value + data[start + len(value) :]


def by_pillow(data):
    """What a user of Pillow gets, (H, W, 3); None if Pillow refuses."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > Image.MAX_IMAGE_PIXELS:
                return None
            image.load()
            pixels = image.convert("RGB")
    except Exception:  # noqa: BLE001  (whatever it is)
        return None
    try:
        return np.array(ImageOps.exif_transpose(image).convert("RGB"))
    except Exception:  # noqa: BLE001
        return np.array(pixels)


def mutated(data, rng):
    """A file with bits flipped, bytes overwritten, a part cut out or put in, or its end missing."""
    data = bytearray(data)
    place = rng.randrange(len(data) if rng.random() < 0.4 else min(len(data), 700))
    match rng.randrange(5):
        case 0:
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            data[place : place + 2] = rng.randbytes(2)
        case 2:
            del data[place : place + rng.randint(1, 40)]
        case 3:
            data[place:place] = rng.randbytes(rng.randint(1, 40))
        case 4:
            del data[place:]
    return bytes(data)


# Files that hardware decoders take, ...
BASELINE = {
    "4:4:4": jpeg(subsampling=0),
    "4:2:2": jpeg(subsampling=1),
    "4:2:0": jpeg(subsampling=2),
    "grey": jpeg(mode="L"),
    "optimised tables": jpeg(optimize=True),
    "restart markers by row": jpeg(restart_marker_rows=1),
    "restart markers by block": jpeg(restart_marker_blocks=2),
    "grey with restart markers": jpeg(mode="L", restart_marker_blocks=3),
    "one pixel": jpeg(1, 1),
    "odd": jpeg(17, 33),
    "best quality": jpeg(quality=100),
    "worst quality": jpeg(quality=1),
    "upright": turned(1),
    "comment": jpeg(comment=b"\xff\xd9 not the end"),
    "colour profile": jpeg(icc_profile=b"profile" * 40_000),
    "something behind the end": jpeg() + b"\xff\xd8 more",
    "no JFIF": without(jpeg(), 0xE0),
    "Adobe's YCbCr": inserted(without(jpeg(), 0xE0), 0xEE, b"Adobe\0\x64\0\0\0\0\1"),
    "flat": saved(Image.new("RGB", (640, 480), "teal"), optimize=True),
}

# ... others that Pillow decodes, ...
OTHERS = {
    "progressive": jpeg(progressive=True),
    "progressive grey": jpeg(mode="L", progressive=True),
    "CMYK": jpeg(mode="CMYK"),
    "RGB as it is": jpeg(keep_rgb=True),
    **{f"orientation {orientation}": turned(orientation) for orientation in range(2, 9)},
    "grey on its side": turned(6, mode="L"),
    "PNG": saved(picture(), "PNG"),
    "PNG with alpha": saved(picture(mode="RGBA"), "PNG"),
    "PNG with a palette": saved(picture(mode="P"), "PNG"),
    "grey PNG": saved(picture(mode="L"), "PNG"),
    "PNG of 1 bit": saved(picture(mode="1"), "PNG"),
    "WebP": saved(picture(), "WEBP"),
    "animated GIF": saved(picture(), "GIF", save_all=True, append_images=[picture(seed=1)]),
    "BMP": saved(picture(), "BMP"),
    "TIFF": saved(picture(), "TIFF"),
    "upside-down PNG": saved(picture(), "PNG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\3\0\0\0\0\0\0"),
}

# ... and those that nobody can.
BROKEN = {
    "empty": b"",
    "garbage": b"no image at all",
    "truncated": jpeg(quality=95)[:2000],
    "truncated PNG": saved(picture(), "PNG")[:1000],
    "no scan": jpeg()[: segments(jpeg())[-1][1]],
    "12 bits": replaced(jpeg(), 0xC0, 0, b"\x0c"),
    "no Huffman tables": replaced(without(jpeg(), 0xC4), 0xDA, 2, b"\x33"),
    "no height": replaced(jpeg(), 0xC0, 1, b"\0\0"),
    "bomb": replaced(jpeg(), 0xC0, 1, b"\xff\xff\xff\xff"),
}
