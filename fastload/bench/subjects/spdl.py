"""SPDL's input stage for training from JPEG files: threads that decode, crop and resize with FFmpeg.

Each thread makes a whole batch, as in SPDL's own ImageNet example. Its queues cost 0.2 ms of Python for each item that
passes, which all threads wait for: batches pass, not images.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torchvision.datasets import ImageFolder

from fastload.bench.harness.charts import RATIO, SCALE
from fastload.bench.harness.window import Batches
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.loaders import DTYPE, LAYOUT

if TYPE_CHECKING:
    from spdl.io import ImageFrames

__all__ = ["SETTINGS", "spdl"]

Sample = tuple[str, int]  # a file and its label
Decoded = tuple[list["ImageFrames"], list[int]]

QUEUE = 3  # batches ahead, SPDL's default
SCALING = "bilinear"  # antialiased, as torchvision's
SETTINGS = {"buffer_size": QUEUE, "scale_algo": SCALING}
ATTEMPTS = 10  # torchvision's


def spdl(root: Path, batch: int, side: int, device: torch.device, *, threads: int) -> Batches:
    """Return endless batches, decoded on the CPU and normalised on the device."""
    from spdl.pipeline import PipelineBuilder  # noqa: PLC0415  (a peer that may be missing)

    builder: Any = PipelineBuilder()  # mypy finds no types for its stages
    pipeline = (
        builder.add_source(_drawn(ImageFolder(root).samples, batch))
        .pipe(partial(_decode, side=side), concurrency=threads)
        .pipe(_Delivery(batch, side, device))
        .add_sink(QUEUE)
        .build(num_threads=threads + 1, max_failures=0)  # one more draws and delivers
    )
    with pipeline.auto_stop():
        for images, labels in pipeline:
            if device.type == "cuda":  # their memory belongs to the delivering stream
                for each in (images, labels):
                    each.record_stream(torch.cuda.current_stream(device))
            yield images, labels


def _drawn(samples: Sequence[Sample], batch: int) -> Iterator[list[Sample]]:
    """The samples of each batch: of one epoch after the other, each in random order, without an end."""
    drawn = chain.from_iterable(random.sample(samples, k=len(samples)) for _ in count())
    while True:
        yield list(islice(drawn, batch))


def _decode(samples: Sequence[Sample], *, side: int) -> Decoded:
    return [_decode_image(path, side) for path, _ in samples], [label for _, label in samples]


def _decode_image(path: str, side: int) -> ImageFrames:
    from spdl import io  # noqa: PLC0415

    named = io.demux_config(format="image2")  # to guess a file's format takes as long again as to read it
    packets = io.demux_image(path, demux_config=named)
    frames: ImageFrames = io.decode_packets(packets, filter_desc=_augmentation(packets.width, packets.height, side))
    return frames


def _augmentation(width: int, height: int, side: int) -> str:
    """Return a filter graph that crops a random box, resizes it, and mirrors half of the images.

    FFmpeg rounds the box to whole pixels of the colours, of which most files have one for two by two.
    """
    left, top, box_width, box_height = _random_box(width, height)
    mirror = "hflip," if random.random() < 0.5 else ""  # noqa: PLR2004  (one in two)
    crop = f"crop={box_width}:{box_height}:{left}:{top}"
    return f"{crop},{mirror}scale={side}:{side}:flags={SCALING},format=rgb24"


def _random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """Draw left, top, width and height by the formula of torchvision's ``RandomResizedCrop``."""
    for _ in range(ATTEMPTS):
        area = width * height * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(*map(math.log, RATIO)))
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            return random.randint(0, width - box_width), random.randint(0, height - box_height), box_width, box_height
    box_width, box_height = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    return (width - box_width) // 2, (height - box_height) // 2, box_width, box_height


class _Delivery:
    """Makes batches on the device, one after another, on a stream of its own."""

    def __init__(self, batch: int, side: int, device: torch.device) -> None:
        from spdl import io  # noqa: PLC0415
        from spdl.io.utils import built_with_cuda  # noqa: PLC0415

        self.device = device
        self.mean, self.std = (
            torch.tensor([255 * value for value in values], device=device).view(3, 1, 1) for values in (MEAN, STD)
        )
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.storage = self.config = None
        if self.stream is not None and built_with_cuda():
            self.storage = io.cpu_storage(batch * side * side * 3, pin_memory=True)
            self.config = io.cuda_config(
                self.stream.device_index,
                stream=self.stream.cuda_stream,
                allocator=(torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete),
            )

    def __call__(self, decoded: Decoded) -> tuple[torch.Tensor, torch.Tensor]:
        frames, labels = decoded
        with torch.cuda.stream(self.stream):
            images = self._copy(frames).permute(0, 3, 1, 2).to(DTYPE, memory_format=LAYOUT)
            delivered = images.sub_(self.mean).div_(self.std), torch.tensor(labels, device=self.device)
        if self.stream is not None:
            self.stream.synchronize()
        return delivered

    def _copy(self, frames: Sequence[ImageFrames]) -> torch.Tensor:
        from spdl import io  # noqa: PLC0415

        buffer: Any = io.convert_frames(frames, storage=self.storage)
        if self.config is not None:
            buffer = io.transfer_buffer(buffer, device_config=self.config)
        images: torch.Tensor = io.to_torch(buffer)
        if images.device.type == self.device.type:
            return images
        return images.pin_memory().to(self.device, non_blocking=True)  # where SPDL's CUDA library cannot be loaded
