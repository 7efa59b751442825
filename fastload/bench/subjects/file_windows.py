"""``FileWindows``: training from JPEG files, checked and timed window by window; what ``jpeg`` and ``ddp`` measure."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload.bench.harness.charts import CLASSES, check_charts, write_charts
from fastload.bench.harness.window import Batches, Step, Window, outside_gib, run, timed_window
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.loaders import DTYPE, LAYOUT
from fastload.bench.subjects.stages import CPU_STAGES, STAGES, STATIC_STAGES, JpegFiles
from fastload.data import sample_data
from fastload.kernels import reference

__all__ = ["CAPTURING", "SEED", "FileWindows", "JpegSize", "look", "write_photographs"]

CHECKED_BATCHES = 3
CAPTURING = 8  # steps: three without a graph, and one graph for each of the five places that batches come to
SEED = 0


@dataclass(frozen=True)
class JpegSize:
    """The model, and how long it trains.

    Windows are several times as long as all queues together hold. Workers, or threads, that decode make a batch each
    and deliver in bursts. So their windows are whole ``rounds`` of one batch from each, after one round of warm-up:
    where a window cuts a burst would change its figure. The limit's windows are as long as the others', since a GPU
    that was just idle runs faster than a busy one.

    The warm-up lasts until queues are full and pinned memory has stopped growing; while it grows, steps take two to
    four times as long. Decoders' buffers grow over hundreds of batches: those are the ``first`` steps, which are timed
    by themselves. Where nothing trains, ``settling`` batches are decoded before.
    """

    model: str
    batch: int
    rounds: int
    steps: int = 100
    warm_up: int = 50
    settling: int = 400
    first: int = 300
    files: int = 1280  # one in five held out, which are not read
    side: int = 224

    def window(self, subject: str, workers: int) -> tuple[int, int]:
        """Return the steps of warm-up, and the steps that are timed, for ``workers`` if the subject's decode."""
        if subject in CPU_STAGES:
            return workers, self.rounds * workers
        return self.warm_up, self.steps


@dataclass
class FileWindows:
    """Files to train from, one batch of them kept on the device, and the windows timed on both."""

    size: JpegSize
    files: JpegFiles
    kept: tuple[torch.Tensor, torch.Tensor]
    outside: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # GiB outside of PyTorch's allocator

    @classmethod
    @contextmanager
    def open(cls, size: JpegSize, device: torch.device) -> Iterator[FileWindows]:
        """Write the files, and delete them in the end."""
        with tempfile.TemporaryDirectory(prefix="fastload-bench-") as folder:
            yield cls.of(size, write_photographs(folder, size.files), device)

    @classmethod
    def of(cls, size: JpegSize, root: Path, device: torch.device) -> FileWindows:
        """Use the files in ``root``."""
        files = JpegFiles(root, size.batch, size.side, device)
        return cls(size, files, _batch_of(files))

    def check(self, name: str) -> None:
        """Raise ``WrongValuesError`` if what a subject makes of test charts is wrong."""
        with tempfile.TemporaryDirectory(prefix="fastload-bench-") as folder, self._counted(name):
            root = write_charts(Path(folder) / "charts", max(1, self.size.batch // CLASSES))
            check_charts(
                name,
                STAGES[name](replace(self.files, root=root)),
                count=CHECKED_BATCHES,
                shape=(self.size.batch, 3, self.size.side, self.size.side),
                dtype=DTYPE,
                memory_format=LAYOUT,
            )

    def settle(self, name: str) -> None:
        """Let a decoder's buffers grow to their full size: growing one waits for all work on the device."""
        if name not in CPU_STAGES:
            with self._counted(name), closing(STAGES[name](self.files)) as batches:
                run(look, batches, self.size.settling)

    def window(self, name: str, step: Step, *, static: bool = False) -> Window:
        """Time a window of ``step`` on the batches of a subject, or on the batch kept on the device for the limit.

        With ``static``, batches come at fixed addresses.
        """
        warm_up, steps = self.size.window(name, self.files.decoding)
        return self._window(name, step, warm_up, steps, static=static)

    def first(self, name: str, step: Step, *, static: bool = False) -> Window:
        """Time the first steps of a subject: from its second on or, with ``static``, once all graphs are captured."""
        return self._window(name, step, CAPTURING if static else 1, self.size.first, static=static)

    def _window(self, name: str, step: Step, warm_up: int, steps: int, *, static: bool = False) -> Window:
        batches = self._kept() if name == "limit" else STAGES[name](replace(self.files, static=static))
        if static and name not in STATIC_STAGES:
            batches = _at_fixed_addresses(batches)
        with self._counted(name):
            window = timed_window(step, batches, warm_up=warm_up, steps=steps, device=self.files.device)
        peak = None if window.peak_gib is None else window.peak_gib + self.outside[name]
        return replace(window, peak_gib=peak)

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        """Add the device memory taken outside of PyTorch meanwhile to the subject's: decoders keep their buffers."""
        before = outside_gib(self.files.device)
        yield
        self.outside[name] += outside_gib(self.files.device) - before

    def _kept(self) -> Batches:
        while True:
            yield self.kept


def _at_fixed_addresses(batches: Batches) -> Batches:
    """Copy each batch to the same memory, as users of other loaders do for a CUDA graph."""
    with closing(batches):
        images, labels = (torch.empty_like(each) for each in next(batches))
        for batch in batches:
            images.copy_(batch[0])
            labels.copy_(batch[1])
            yield images, labels


def look(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Do the least that a consumer can: need the batch, and take next to no time."""
    return images[0, 0, 0, 0] + labels[0]


def write_photographs(folder: str, count: int) -> Path:
    """Write the files, and return the folder of those that are read."""
    return sample_data(Path(folder) / "photographs", count, seed=SEED) / "train"


def _batch_of(files: JpegFiles) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one batch like those of the subjects, made with torchvision."""
    torch.manual_seed(SEED)
    transform = v2.Compose([v2.RandomResizedCrop(files.side), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    loader = DataLoader(ImageFolder(files.root, transform), batch_size=1, shuffle=True)
    images, labels = zip(*islice(loader, files.batch), strict=True)
    normalized = reference.flip_normalize(torch.cat(images), MEAN, STD, dtype=DTYPE, memory_format=LAYOUT)
    return normalized.to(files.device), torch.cat(labels).to(files.device)
