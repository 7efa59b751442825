"""How close DINO's training comes to its speed on views that are on the GPU, when it starts from JPEG files.

Every subject reads the same files and feeds the same compiled training step with ten views of each image, two of 224
pixels and eight of 96. Its speed, in files, is divided by that of the ``limit``, the step on one batch of views kept on
the device, measured just before and just after it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fastload.bench.harness.charts import CLASSES, check_charts, write_charts
from fastload.bench.harness.plan import Plan
from fastload.bench.harness.row import Row
from fastload.bench.harness.suite import Sizes, Suite, sizes_on
from fastload.bench.harness.turns import Figures, by_turns
from fastload.bench.harness.window import Step, run, timed_window
from fastload.bench.subjects import training
from fastload.bench.subjects.dino import DinoStep
from fastload.bench.subjects.file_windows import SEED, write_photographs
from fastload.bench.subjects.loaders import DTYPE, LAYOUT
from fastload.bench.subjects.training import cudnn_search
from fastload.bench.subjects.view_stages import LARGE_SCALE, SMALL_SCALE, STAGES_OF_VIEWS, ViewFiles, Views
from fastload.bench.subjects.workers import READING_WORKERS, decoding_workers

__all__ = ["SUITE"]

CHECKED_BATCHES = 2


@dataclass(frozen=True)
class ViewsSize:
    """The model, and how long it trains: subjects that decode in workers, whole ``rounds`` of a batch from each."""

    model: str
    batch: int
    rounds: int
    steps: int = 100
    warm_up: int = 30
    settling: int = 200
    files: int = 1280  # one in five held out, which are not read
    large: int = 224
    small: int = 96
    smalls: int = 8

    def window(self, subject: str) -> tuple[int, int]:
        """Return the steps of warm-up, and the steps that are timed."""
        if subject == "workers":
            return decoding_workers(), self.rounds * decoding_workers()
        return self.warm_up, self.steps


CPU_SIZE = ViewsSize(
    "squeezenet1_1", 4, rounds=1, steps=1, warm_up=1, settling=1, files=20, large=48, small=32, smalls=2
)
CASES = {"dino_resnet50_b64": Sizes(ViewsSize("resnet50", 64, rounds=3), CPU_SIZE)}


def measure(plan: Plan[ViewsSize]) -> list[Row]:
    size = plan.size
    subjects = [name for name in plan.subjects if name != SUITE.baseline]
    with tempfile.TemporaryDirectory(prefix="fastload-bench-") as folder:
        for name in plan.track(subjects, "checking"):
            check(name, size, plan.device)
        root = write_photographs(folder, size.files)
        files = ViewFiles(root, size.batch, plan.device, size.large, size.small, size.smalls)
        kept = _first(STAGES_OF_VIEWS["fastload"](files))
        with closing(STAGES_OF_VIEWS["fastload"](files)) as batches:
            run(lambda views, _: views[0][0, 0, 0, 0], batches, size.settling)  # decoders' buffers grow

        with cudnn_search():
            step = DinoStep(size.model, plan.device)
            rows = _train(plan, subjects, files, kept, step)
            if plan.device.type == "cuda":
                plan.save(rows)
                on_device = [name for name in subjects if name != "workers"]
                rows += _train(plan, on_device, replace(files, static=True), kept, step.as_graphs())
            return rows


def _train(plan: Plan[ViewsSize], subjects: Sequence[str], files: ViewFiles, kept: Any, step: Step) -> list[Row]:
    """Measure the subjects by turns while they train, with the limit, on the views ``kept``, around each."""

    def window(name: str) -> Figures:
        batches = _always(kept) if name == SUITE.baseline else STAGES_OF_VIEWS[name](files)
        warm_up, steps = plan.size.window(name)
        timed = timed_window(step, batches, warm_up=warm_up, steps=steps, device=plan.device)
        if files.static:  # the step is a graph, and the allocator does not count what graphs use
            timed = replace(timed, peak_gib=None)
        return timed.img_per_s(plan.size.batch)

    window(SUITE.baseline)  # compiles the model, or captures the step
    variant = "graph" if files.static else "ordinary"
    ratios, around = {"img_per_s": SUITE.baseline}, SUITE.baseline
    return by_turns(plan, subjects, window, ratios=ratios, around=around, variant=variant)


def check(name: str, size: ViewsSize, device: torch.device) -> None:
    """Raise ``WrongValuesError`` if a view of test charts is no such crop, or goes with the label of another."""
    with tempfile.TemporaryDirectory(prefix="fastload-bench-") as folder:
        root = write_charts(Path(folder) / "charts", max(1, size.batch // CLASSES))
        files = ViewFiles(root, size.batch, device, size.large, size.small, size.smalls, colours=False)
        with closing(STAGES_OF_VIEWS[name](files)) as batches:
            delivered = [next(batches) for _ in range(CHECKED_BATCHES)]
        for view, side in enumerate(files.sides):
            check_charts(
                name,
                ((views[view], labels) for views, labels in delivered),
                count=CHECKED_BATCHES,
                shape=(size.batch, 3, side, side),
                dtype=DTYPE,
                memory_format=LAYOUT,
                scale=LARGE_SCALE if view < len(files.sides) - size.smalls else SMALL_SCALE,
            )


def _first(batches: Views) -> tuple[list[torch.Tensor], torch.Tensor]:
    with closing(batches):
        views, labels = next(batches)
        return [view.clone() for view in views], labels.clone()


def _always(batch: tuple[list[torch.Tensor], torch.Tensor]) -> Views:
    while True:
        yield batch


def settings(device: torch.device) -> dict[str, object]:
    return {
        "sizes": sizes_on(device, CASES),
        "decoding_workers": decoding_workers(),
        "reading_workers": READING_WORKERS,
        **training.describe(device),
        "files": f"fastload sample-data, seed {SEED}, its train/, read before; each epoch in random order, without end",
        "limit": "one batch of views kept on the device; measured before and after every other window",
    }


SUITE = Suite(
    name="views",
    cases=CASES,
    subjects=("limit", *STAGES_OF_VIEWS),
    baseline="limit",
    packages={},
    runs=3,
    settings=settings,
    measure=measure,
)
