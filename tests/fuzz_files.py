"""Decode mutated files of every accepted format in a process with little memory, and check what becomes of each.

    python -m tests.fuzz_files --files 20000 --json fuzz.json

Through each ``on_error``: what Pillow refuses is named, what it decodes has Pillow's pixels, neighbours are whole, no
program is started, and memory stays within its bound.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import random
import resource
import struct
import sys
import time
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, features

import fastload as fl
from fastload import transforms as T
from fastload.data.pixels import FORMATS as ACCEPTED
from tests.files import BASELINE, OTHERS, jpeg, mutated, picture, saved, segments

MODES = {
    "PNG": ("RGB", "RGBA", "L", "P", "1", "LA"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("RGB", "P", "L"),
    "TIFF": ("RGB", "L", "1", "CMYK", "P"),
    "BMP": ("RGB", "L", "P", "1"),
    "DIB": ("RGB", "L"),
    "PPM": ("RGB", "L", "1"),
    "JPEG2000": ("RGB", "L"),
    "AVIF": ("RGB",),
    "TGA": ("RGB", "L", "P"),
    "ICO": ("RGBA",),
    "QOI": ("RGB", "RGBA"),
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "PNG": [{}, {"interlace": 1}],
    "WEBP": [{}, {"lossless": True}],
    "TIFF": [{}, {"compression": "tiff_lzw"}, {"compression": "tiff_adobe_deflate"}, {"compression": "packbits"}],
    "TGA": [{}, {"compression": "tga_rle"}],
}
SIZES = {  # where a header has width and height, or height and width, and how
    "PNG": (16, ">II"),
    "GIF": (6, "<HH"),
    "BMP": (18, "<II"),
    "DIB": (4, "<II"),
    "TGA": (12, "<HH"),
    "QOI": (4, ">II"),
    "WEBP": (26, "<HH"),
}
SIXTEEN_BITS = Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50)
NEIGHBOUR = jpeg(20, 30)
POLICIES = ("raise", "skip", "zero")

BATCH = 32  # mutated files; each has the neighbour behind it
MOST_PIXELS = 2**22  # of one image: Pillow's limit is 89 million, which would take seconds each
MEMORY = 2**30  # bytes that may be had beside those at the start
HANGING = 120.0  # seconds a batch may take before all stacks are printed and the process ends
PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty"}


def kinds() -> list[str]:
    """The accepted formats that the installed Pillow can write."""
    Image.init()
    return [kind for kind in ACCEPTED if kind in Image.SAVE and (kind != "AVIF" or features.check("avif"))]


@cache
def originals(kind: str) -> list[bytes]:
    """Sound files of a format."""
    if kind == "JPEG":
        sound = {name: file for name, file in (BASELINE | OTHERS).items() if name not in ("flat", "colour profile")}
        return [file for file in sound.values() if file[:2] == b"\xff\xd8"]
    options = OPTIONS.get(kind, [{}])
    files = [saved(picture(30, 40, mode), kind, **each) for mode in MODES[kind] for each in options]
    if kind in ("PNG", "TIFF", "PPM", "JPEG2000"):
        files.append(saved(SIXTEEN_BITS, kind))
    if kind in ("GIF", "WEBP", "TIFF"):
        files.append(saved(picture(30, 40), kind, save_all=True, append_images=[picture(30, 40, seed=1)]))
    return files


def mutants(kind: str, count: int, seed: int) -> Iterator[bytes]:
    """Mutated files: of PNGs, half have sound checksums, so that more than the first check is reached."""
    draw = random.Random(f"{kind} {seed}")
    for _ in range(count):
        file = draw.choice(originals(kind))
        file = lying(kind, file, draw) if draw.random() < 0.1 else mutated(file, draw)
        yield with_checksums(file) if kind == "PNG" and draw.random() < 0.5 else file


def lying(kind: str, file: bytes, draw: random.Random) -> bytes:
    """A file whose header tells another size than that of its image."""
    if kind == "JPEG":
        start = next(start for marker, start, _ in segments(file) if marker in (0xC0, 0xC2))
        offset, form = start + 5, ">HH"
    elif kind in SIZES:
        offset, form = SIZES[kind]
    else:
        return mutated(file, draw)
    size = [draw.choice([0, 1, 17, 300, 2000, 2**14 - 1, 2**16 - 1]) for _ in range(2)]
    return file[:offset] + struct.pack(form, *size) + file[offset + struct.calcsize(form) :]


def with_checksums(png: bytes) -> bytes:
    """A PNG with the checksum of each chunk as it has to be, as far as there are chunks."""
    parts, position = [png[:8]], 8
    while position + 12 <= len(png):
        end = position + 8 + struct.unpack_from(">I", png, position)[0]
        if end + 4 > len(png):
            break
        parts += [png[position:end], struct.pack(">I", zlib.crc32(png[position + 4 : end]))]
        position = end + 4
    return b"".join([*parts, png[position:]])


def by_pillow(data: bytes) -> tuple[np.ndarray | None, bool]:
    """What Pillow alone makes of a file, (H, W, 3), or None; and whether it has 16 bits, which we scale otherwise."""
    try:
        with Image.open(io.BytesIO(data), formats=[kind for kind in ACCEPTED if kind in Image.OPEN]) as image:
            if image.width * image.height > MOST_PIXELS:
                return None, False
            image.load()
            if image.width * image.height > MOST_PIXELS:  # an icon
                return None, False
            plain = image.convert("RGB")
    except Exception:  # noqa: BLE001  (whatever it is)
        return None, False
    try:
        return np.array(ImageOps.exif_transpose(image).convert("RGB")), image.mode.startswith("I")
    except Exception:  # noqa: BLE001
        return np.array(plain), image.mode.startswith("I")


@dataclass
class Tally:
    """What was found in the files of one format."""

    files: int = 0
    bad: int = 0
    seconds: float = 0.0
    slowest_batch: float = 0.0
    problems: list[str] = field(default_factory=list)

    def check(self, batch: list[bytes], on_error: str) -> None:
        """Decode a batch of mutated files, each with a sound one behind it."""
        pixels = [by_pillow(file) for file in batch]
        start = time.monotonic()
        found = self._decode(batch, on_error, {2 * row for row, (image, _) in enumerate(pixels) if image is None})
        took = time.monotonic() - start
        self.files += len(batch)
        self.bad += sum(image is None for image, _ in pixels)
        self.seconds += took
        self.slowest_batch = max(self.slowest_batch, took)
        for place, image in found.items():
            expected, is_deep = (neighbour(), False) if place % 2 else pixels[place // 2]
            if expected is None:
                if image.any():
                    self.problems.append(f"{on_error}: file {place} is bad and not black")
            elif image.shape != expected.shape or not (is_deep or np.array_equal(image, expected)):
                self.problems.append(f"{on_error}: file {place} differs from Pillow's")

    def _decode(self, batch: list[bytes], on_error: str, bad: set[int]) -> dict[int, np.ndarray]:
        """The images, (H, W, 3), by the place of their files."""
        files = fl.collate([file for mutant in batch for file in (mutant, NEIGHBOUR)])
        try:
            images = T.DecodeJpeg(on_error, device="cpu")(files)
        except T.BadImageError as error:
            named = {place for place in range(len(files)) if f"sample {place}: " in str(error)}
            if on_error != "raise" or named != bad:
                self.problems.append(f"{on_error}: {sorted(named)} are named, {sorted(bad)} are bad")
            return {}
        places = [place for place in range(len(files)) if on_error != "skip" or place not in bad]
        if (on_error == "raise" and bad) or len(images) != len(places):
            self.problems.append(f"{on_error}: {len(images)} images, and {sorted(bad)} are bad")
            return {}
        return {place: image.permute(1, 2, 0).numpy() for place, image in zip(places, images, strict=True)}


@cache
def neighbour() -> np.ndarray:
    pixels, _ = by_pillow(NEIGHBOUR)
    assert pixels is not None
    return pixels


def fuzz(kind: str, count: int, on_error: str, seed: int = 0) -> Tally:
    """Decode ``count`` mutated files of a format; ``PIL.Image.MAX_IMAGE_PIXELS`` must be ``MOST_PIXELS``."""
    tally, files = Tally(), list(mutants(kind, count, seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for start in range(0, count, BATCH):
            faulthandler.dump_traceback_later(HANGING, exit=True)
            tally.check(files[start : start + BATCH], on_error)
            faulthandler.cancel_dump_traceback_later()
    return tally


def refuse_programs() -> list[str]:
    """Let no program be started from now on; the list has those that were to be."""
    started: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in PROGRAMS:
            started.append(f"{event}{arguments}")
            raise PermissionError(event)

    sys.addaudithook(hook)
    return started


def limit_memory() -> None:
    """Let this process have no more than ``MEMORY`` beside what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000, help="of all formats together, for each on_error")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=kinds(), help="formats")
    parser.add_argument("--json", type=Path, help="where to write the counts")
    arguments = parser.parse_args()
    Image.MAX_IMAGE_PIXELS = MOST_PIXELS
    torch.set_num_threads(1)
    for kind in arguments.kinds:  # what is loaded once, is loaded
        fuzz(kind, 1, "zero")
    started = refuse_programs()
    limit_memory()
    before, problems, results = peak(), [], {}
    for kind in arguments.kinds:
        for on_error in POLICIES:
            tally = fuzz(kind, -(-arguments.files // len(arguments.kinds)), on_error, arguments.seed)
            results[f"{kind} {on_error}"] = asdict(tally)
            problems += [f"{kind}: {problem}" for problem in tally.problems]
            print(
                f"{kind:8} {on_error:5} {tally.files} files, {tally.bad} bad, {tally.seconds:.1f} s, slowest batch "
                f"{tally.slowest_batch:.2f} s, {len(tally.problems)} problems",
                flush=True,
            )
    problems += [f"a program was to be started: {each}" for each in started]
    for problem in problems[:50]:
        print(f"FOUND: {problem}")
    grown = peak() - before
    print(f"{len(problems)} problems; resident memory grew by {grown / 2**20:.0f} MiB of {MEMORY / 2**20:.0f} allowed")
    if arguments.json:
        arguments.json.write_text(json.dumps({"results": results, "problems": problems, "grown": grown}, indent=1))
    return int(bool(problems))


def peak() -> int:
    """Bytes that the process has had resident at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
