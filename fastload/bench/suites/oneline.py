"""Whether one line around a loader whose workers decode ever costs anything, next to the plain loop.

Both train the same compiled step from the same files. Their workers would compete for the cores, so they take turns of
about a second: both loaders are there from the start, and the workers of the one that is not measured stand still.
Nothing is started anew, so turns can be short, and what changes on the machine from one second to the next meets both.

A loader's speed is that at which its workers decode, over several turns. In the long run training consumes as many
images. In one turn it consumes more or fewer, since at its end other numbers of batches wait than at its start; and
workers decode more or fewer, since they also put batches together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import active_children

import psutil
import torch

from fastload.bench.harness.plan import Plan
from fastload.bench.harness.row import Row
from fastload.bench.harness.suite import Sizes, Suite, sizes_on
from fastload.bench.harness.turns import Figures, Turn, by_turns, rows_of
from fastload.bench.harness.window import Batches, Step, Window, run, timed_window
from fastload.bench.subjects.file_windows import FileWindows, JpegSize
from fastload.bench.subjects.sample_counter import SampleCounter
from fastload.bench.subjects.stages import STAGES, JpegFiles
from fastload.bench.subjects.training import TrainingStep, cudnn_search
from fastload.bench.subjects.workers import decoding_workers
from fastload.bench.suites import jpeg

__all__ = ["SUITE", "PausedStage", "worker_counts"]

LIMIT = jpeg.SUITE.baseline
WORKERS = (4, 12, 15)  # the workers hold training up; they keep up with it, or nearly; and so with no core to spare
ROUNDS = {"resnet50_b256": 2, "vit_b16_b128": 2, "resnet18_b512": 1}  # of a batch from each worker, in a turn
TURNS = 6  # of each loader, in a run
CPU_ROUNDS = 8  # at the tiny size: more batches than queues hold, so that workers decode in every turn
LIMIT_STEPS, LIMIT_WARM_UP = 20, 10


def _sizes(case: str, rounds: int) -> Sizes[JpegSize]:
    """Return the size that ``jpeg`` has, in short windows."""
    sizes = jpeg.CASES[case]
    return replace(
        sizes,
        gpu=replace(sizes.gpu, rounds=rounds, steps=LIMIT_STEPS, warm_up=LIMIT_WARM_UP),
        cpu=replace(sizes.cpu, rounds=CPU_ROUNDS),
    )


CASES = {case: _sizes(case, rounds) for case, rounds in ROUNDS.items()}


@dataclass(frozen=True)
class Stretch:
    """What came of a stage between two pauses: the images that its workers decoded, and the training steps."""

    images: int
    seconds: float
    window: Window

    @staticmethod
    def img_per_s(stretches: Sequence[Stretch]) -> Figures:
        """Return the speed of all of them together: an image of which a pause is in the midst counts in the next."""
        images, windows = sum(each.images for each in stretches), [each.window for each in stretches]
        cpu_s = sum(window.cpu_s_per_step * len(window.waits) for window in windows)
        together = Window(
            steps_per_s=images / sum(each.seconds for each in stretches),
            peak_gib=None,  # both loaders hold memory at once, so a peak is nobody's
            cpu_s_per_step=cpu_s / images,
            waits=[wait for window in windows for wait in window.waits],
            gaps=[gap for window in windows for gap in window.gaps],
        )
        return together.img_per_s(batch=1)


@dataclass(frozen=True)
class PausedStage:
    """A stage whose workers stand still but in its turns."""

    device: torch.device
    decoded: SampleCounter
    batches: Batches
    workers: Sequence[psutil.Process]

    @classmethod
    @contextmanager
    def start(cls, name: str, files: JpegFiles, step: Step) -> Iterator[PausedStage]:
        """Start the stage's workers, train on a batch from each, and pause them."""
        decoded, others = SampleCounter(files.decoding), set(active_children())
        with closing(STAGES[name](replace(files, counter=decoded))) as batches:
            run(step, batches, files.decoding)
            workers = [psutil.Process(each.pid) for each in set(active_children()) - others]
            stage = cls(files.device, decoded, batches, workers)
            stage.pause()
            try:
                yield stage
            finally:
                stage.resume()  # a process that stands still does not end

    def turn(self, step: Step, steps: int) -> Stretch:
        """Train for ``steps`` steps while the workers run."""
        own = (batch for batch in self.batches)  # the window closes these, and not the stage's
        before, start = self.decoded.total(), time.perf_counter()
        self.resume()
        try:
            window = timed_window(step, own, warm_up=0, steps=steps, device=self.device)
        finally:
            self.pause()
        return Stretch(self.decoded.total() - before, time.perf_counter() - start, window)

    def pause(self) -> None:
        for worker in self.workers:
            worker.suspend()

    def resume(self) -> None:
        for worker in self.workers:
            worker.resume()


def measure(plan: Plan[JpegSize]) -> list[Row]:
    """Compile the step once, and measure with each number of workers."""
    subjects = [name for name in plan.subjects if name != LIMIT]
    with FileWindows.open(plan.size, plan.device) as windows, cudnn_search():
        variants = [replace(windows, files=replace(windows.files, workers=workers)) for workers in worker_counts()]
        for name in plan.track(subjects, "checking"):
            variants[0].check(name)  # with the fewest workers, which start soonest
        step = TrainingStep(plan.size.model, plan.device)
        jpeg.compile_step(windows, step)
        rows = _limit(plan, windows, step) if LIMIT in plan.subjects else []
        for variant in variants:
            rows += _compare(plan, subjects, variant.files, step)
            plan.save(rows)
        return rows


def _limit(plan: Plan[JpegSize], windows: FileWindows, step: TrainingStep) -> list[Row]:
    """Measure once how fast the step can be: it says whether the workers or the device hold training up."""

    def window(name: str) -> Figures:
        return replace(windows.window(name, step), peak_gib=None).img_per_s(plan.size.batch)

    return by_turns(replace(plan, runs=1), [LIMIT], window)


def _compare(plan: Plan[JpegSize], subjects: Sequence[str], files: JpegFiles, step: TrainingStep) -> list[Row]:
    """Measure the subjects in runs of many turns each."""
    variant, steps = f"{files.decoding}_workers", plan.size.rounds * files.decoding
    with ExitStack() as stack:
        stages = {name: stack.enter_context(PausedStage.start(name, files, step)) for name in subjects}
        log = [
            Turn(run, name, figures)
            for run, _ in enumerate(plan.track([variant] * plan.runs, "measuring"))
            for name, figures in _run(stages, step, steps).items()
        ]
        return rows_of(plan.case, log, ratios={"img_per_s": SUITE.baseline}, variant=variant)


def _run(stages: Mapping[str, PausedStage], step: Step, steps: int) -> dict[str, Figures]:
    """Let the stages take turns, in one order and then in the other, so that each is early as often as late."""
    stretches: dict[str, list[Stretch]] = {name: [] for name in stages}
    for turn in range(TURNS):
        for name in list(stages)[:: 1 if turn % 2 == 0 else -1]:
            stretches[name].append(stages[name].turn(step, steps))
    return {name: Stretch.img_per_s(each) for name, each in stretches.items()}


def worker_counts() -> list[int]:
    """Return how many workers each variant has: no more than would leave a core for training."""
    return list(dict.fromkeys(min(workers, decoding_workers()) for workers in WORKERS))


def settings(device: torch.device) -> dict[str, object]:
    return {
        "sizes": sizes_on(device, CASES),
        "workers": worker_counts(),
        **jpeg.common_settings(device),
        "limit": "one batch of the files kept on the device; measured once a case",
        "peak_gib": "not measured: both loaders are there at once",
        "turns": f"{TURNS} of each loader in a run; the workers of the other stand still",
        "img_per_s": "images that the workers decode in a run's turns",
    }


SUITE = Suite(
    name="oneline",
    cases=CASES,
    subjects=(LIMIT, "plain", "oneline"),
    baseline="plain",
    packages={},
    runs=4,
    settings=settings,
    measure=measure,
)
