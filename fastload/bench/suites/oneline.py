"""Whether one line around a loader whose workers decode ever costs anything, next to the plain loop.

Both train the same compiled step from the same files. Their workers would compete for the cores, so they take turns of
about a second: both loaders are there from the start, and the workers of the one that is not measured stand still.
Nothing is started anew, so turns can be short, and what changes on the machine from one second to the next meets both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import active_children

import psutil
import torch

from fastload.bench.harness.plan import Plan
from fastload.bench.harness.row import Row
from fastload.bench.harness.suite import Sizes, Suite, sizes_on
from fastload.bench.harness.turns import Figures, by_turns
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
class PausedStage:
    """A stage whose workers stand still but in its turns."""

    files: JpegFiles
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
            stage = cls(files, decoded, batches, workers)
            stage.pause()
            try:
                yield stage
            finally:
                stage.resume()  # a process that stands still does not end

    def turn(self, step: Step, steps: int) -> Window:
        """Train for ``steps`` steps while the workers run, and return how fast they decoded."""
        own = (batch for batch in self.batches)  # the window closes these, and not the stage's
        before, start = self.decoded.total(), time.perf_counter()
        self.resume()
        try:
            window = timed_window(step, own, warm_up=0, steps=steps, device=self.files.device)
        finally:
            self.pause()
        seconds = time.perf_counter() - start
        decoded = (self.decoded.total() - before) / self.files.batch
        return replace(window, steps_per_s=decoded / seconds, cpu_s_per_step=window.cpu_s_per_step * steps / decoded)

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
    return by_turns(replace(plan, runs=1), [LIMIT], lambda name: _speed(windows.window(name, step), plan.size))


def _compare(plan: Plan[JpegSize], subjects: Sequence[str], files: JpegFiles, step: TrainingStep) -> list[Row]:
    """Measure the subjects by turns, the plain loop before and after each."""
    with ExitStack() as stack:
        stages = {name: stack.enter_context(PausedStage.start(name, files, step)) for name in subjects}

        def turn(name: str) -> Figures:
            return _speed(stages[name].turn(step, plan.size.rounds * files.decoding), plan.size)

        return by_turns(
            plan,
            [name for name in subjects if name != SUITE.baseline],
            turn,
            ratios={"img_per_s": SUITE.baseline},
            around=SUITE.baseline,
            variant=f"{files.decoding}_workers",
        )


def _speed(window: Window, size: JpegSize) -> Figures:
    # Both loaders hold memory at once, so a peak is nobody's.
    return replace(window, peak_gib=None).img_per_s(size.batch)


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
        "img_per_s": "images that the workers decode in a turn; those of the other loader stand still",
    }


SUITE = Suite(
    name="oneline",
    cases=CASES,
    subjects=(LIMIT, "plain", "oneline"),
    baseline="plain",
    packages={},
    runs=6,
    settings=settings,
    measure=measure,
)
