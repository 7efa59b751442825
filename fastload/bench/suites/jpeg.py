"""How near training comes to its speed with data on the GPU, when it starts from JPEG files.

Every subject reads the same files and feeds the same compiled training step. Its speed is divided by that of the
``limit``, the step on one batch of them kept on the device, measured just before and just after it. The case ``loader``
measures what the subjects deliver to a consumer that does nothing.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload.bench.harness.charts import CLASSES, check_charts, write_charts
from fastload.bench.harness.limit import next_to_limit
from fastload.bench.harness.result import Row, row
from fastload.bench.harness.suite import Plan, Suite
from fastload.bench.harness.window import Batches, Step, Window, outside_gib, run, timed_window
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects import dali, stages, training
from fastload.bench.subjects.loaders import DTYPE, LAYOUT
from fastload.bench.subjects.stages import CPU_STAGES, STAGES, Source, decoding_workers
from fastload.bench.subjects.training import TrainingStep, cudnn_search
from fastload.data import sample_data
from fastload.kernels import reference

__all__ = ["SUITE", "Bench", "Size", "photographs", "training_rows"]

CHECKED_BATCHES = 3
SEED = 0


@dataclass(frozen=True)
class Size:
    """The model, and how long it trains: windows are several times as long as all queues together.

    Workers that decode, each a batch of its own, hand them over in bursts. So their windows are whole ``rounds`` of a
    batch a worker, after a round of warm-up: a window that cut a burst in two would depend on where. The limit's are as
    long as the others': a GPU that has just been idle runs faster than one that is at work.

    The warm-up is long enough for queues to fill, and pinned memory to grow: while it grows, steps take two to four
    times as long. Decoders' buffers take hundreds of batches: they are given ``settling`` of them before, untrained.
    """

    model: str
    batch: int
    rounds: int
    steps: int = 100
    warm_up: int = 50
    settling: int = 400
    files: int = 1280  # one in five held out, which nobody reads
    side: int = 224

    @classmethod
    def of(cls, case: str, device: torch.device) -> Size:
        size = CASES[case]
        if device.type == "cuda":
            return size
        return replace(size, model="resnet18", batch=4, rounds=1, steps=2, warm_up=1, settling=1, files=20, side=32)

    def window(self, subject: str) -> tuple[int, int]:
        """Steps of warm-up, and steps that are timed."""
        if subject in CPU_STAGES:
            return decoding_workers(), self.rounds * decoding_workers()
        return self.warm_up, self.steps


CASES = {
    "resnet50_b256": Size("resnet50", 256, rounds=6),
    "vit_b16_b128": Size("vit_b_16", 128, rounds=8),
    "resnet18_b512": Size("resnet18", 512, rounds=5),
    "loader": Size("none", 256, rounds=6),
}


@dataclass
class Bench:
    """The files, and the windows timed on them."""

    size: Size
    source: Source
    kept: tuple[torch.Tensor, torch.Tensor]
    outside: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @classmethod
    @contextmanager
    def open(cls, size: Size, device: torch.device) -> Iterator[Bench]:
        """Write the files, and delete them in the end."""
        with tempfile.TemporaryDirectory(prefix="fastload-bench-") as folder:
            yield cls.of(size, photographs(folder, size), device)

    @classmethod
    def of(cls, size: Size, root: Path, device: torch.device) -> Bench:
        """Take the files that ``root`` has."""
        source = Source(root, size.batch, size.side, device)
        return cls(size, source, _batch_of(source))

    def check(self, name: str) -> None:
        """Check what a subject makes of test charts."""
        with tempfile.TemporaryDirectory(prefix="fastload-bench-") as folder, self._watched(name):
            root = write_charts(Path(folder) / "charts", max(1, self.size.batch // CLASSES))
            check_charts(
                name,
                STAGES[name](replace(self.source, root=root)),
                count=CHECKED_BATCHES,
                shape=(self.size.batch, 3, self.size.side, self.size.side),
                dtype=DTYPE,
                memory_format=LAYOUT,
            )

    def settle(self, name: str) -> None:
        """Let a decoder's buffers grow: whenever one does, all that the device has been given is waited for."""
        if name not in CPU_STAGES:
            with self._watched(name), closing(STAGES[name](self.source)) as batches:
                run(_look, batches, self.size.settling)

    def window(self, name: str, step: Step) -> Window:
        batches = self._kept() if name == "limit" else STAGES[name](self.source)
        warm_up, steps = self.size.window(name)
        with self._watched(name):
            window = timed_window(step, batches, warm_up=warm_up, steps=steps, device=self.source.device)
        peak = None if window.peak_gib is None else window.peak_gib + self.outside[name]
        return replace(window, peak_gib=peak)

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        """Count as a subject's what is taken on the device outside of PyTorch meanwhile: decoders keep their pools."""
        before = outside_gib(self.source.device)
        yield
        self.outside[name] += outside_gib(self.source.device) - before

    def _kept(self) -> Batches:
        while True:
            yield self.kept


def photographs(folder: str, size: Size) -> Path:
    """Write the files, and return where those that are read are."""
    return sample_data(Path(folder) / "photographs", size.files, seed=SEED) / "train"


def _batch_of(source: Source) -> tuple[torch.Tensor, torch.Tensor]:
    """One batch as the subjects deliver it, made with torchvision."""
    torch.manual_seed(SEED)
    transform = v2.Compose([v2.RandomResizedCrop(source.side), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    loader = DataLoader(ImageFolder(source.root, transform), batch_size=1, shuffle=True)
    images, labels = zip(*islice(loader, source.batch), strict=True)
    normalized = reference.flip_normalize(torch.cat(images), MEAN, STD, dtype=DTYPE, memory_format=LAYOUT)
    return normalized.to(source.device), torch.cat(labels).to(source.device)


def measure(plan: Plan) -> list[Row]:
    size = Size.of(plan.case, plan.device)
    subjects = [name for name in plan.subjects if name != "limit"]
    with Bench.open(size, plan.device) as bench:
        for name in plan.track(subjects, "checking"):
            bench.check(name)
            bench.settle(name)
        return _loaders(plan, bench, subjects) if plan.case == "loader" else training_rows(plan, bench, subjects)


def training_rows(
    plan: Plan,
    bench: Bench,
    subjects: list[str],
    *,
    ranks: int = 1,
    wrap: Callable[[nn.Module], nn.Module] | None = None,
    agreed: Callable[[Window], Window] = lambda window: window,
) -> list[Row]:
    """Train on what the subjects deliver, and the limit; as one of ``ranks``, which have ``agreed`` on each window."""
    with cudnn_search():
        step = TrainingStep(bench.size.model, plan.device, wrap)
        bench.window("limit", step)  # compiles the model, on data that is on the device already
        bench.outside["limit"] = 0.0  # the model's kernels, which every subject uses
        return next_to_limit(plan, subjects, ranks * bench.size.batch, lambda name: agreed(bench.window(name, step)))


def _loaders(plan: Plan, bench: Bench, subjects: list[str]) -> list[Row]:
    windows: dict[str, list[Window]] = defaultdict(list)
    for name in plan.alternate(subjects):
        windows[name].append(bench.window(name, _look))
    return [
        row(plan.case, name, "loader_img_per_s", [bench.size.batch * window.steps_per_s for window in windows[name]])
        for name in subjects
    ]


def _look(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The least that a consumer can do: it needs the batch, and next to no time."""
    return images[0, 0, 0, 0] + labels[0]


def settings(device: torch.device) -> dict[str, object]:
    return {
        "sizes": {case: asdict(Size.of(case, device)) for case in CASES},
        **stages.describe(),
        **training.describe(device),
        "files": f"fastload sample-data, seed {SEED}, its train/, read before; drawn with replacement, without end",
        "dali": dali.SETTINGS,
        "limit": "one batch of the files kept on the device; measured before and after every other window",
        "peak_gib": "of PyTorch's allocator, and what the subject took on the device beside it",
    }


SUITE = Suite(
    name="jpeg",
    cases=tuple(CASES),
    subjects=("limit", *STAGES),
    baseline="limit",
    packages={"pil_timm": "timm", "torchvision_timm": "timm", "dali": "nvidia-dali-cuda130"},
    runs=3,
    settings=settings,
    measure=measure,
)
