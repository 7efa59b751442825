"""``diagnose``: what bounds training, from what was measured of its loader."""

from __future__ import annotations

import linecache
import re
from dataclasses import replace

from fastload.environment import MEASURES
from fastload.report.case import Case
from fastload.report.input_causes import COMPUTING, cause_of_waiting, ms, small_batches, too_few_workers
from fastload.report.setup import Setup
from fastload.report.verdict import Bound, Cause, Verdict
from fastload.stats.stats import Stats

__all__ = ["NOTICEABLE", "diagnose"]

# A smaller part of the time spent waiting for input is not worth a change: no loader could win more than this.
NOTICEABLE = 0.05
# Of a step: a host that is less far ahead launches work while the device has none left.
AHEAD = 0.1
# The training thread is found so often at the line at which it waits.
CONCENTRATED = 0.5
FEWEST = 5  # batches to judge by
FULL = 0.5  # of shared memory
GIB = 2**30

# What brings a value to the host, so that the host waits for the device.
SYNCS = re.compile(r"\.(item|cpu|tolist|numpy|nonzero|synchronize)\(|\b(float|int|bool|print)\(|\.to\([\"']cpu")

STAGES = {
    "load": "waiting for the workers",
    "pin": "pinning files",
    "decode": "decoding files",
    "prepare": "preparing batches on the host",
    "copy": "the copy to the device",
    "transform": "the transform",
}


def diagnose(stats: Stats, setup: Setup) -> Verdict:
    """Judge the recent batches of a loader.

    >>> diagnose(Stats(), Setup()).bound.value
    'not known yet'
    """
    if not MEASURES:
        off = "Nothing is measured, since FASTLOAD_CLOCK is off: unset it before fastload is imported"
        return Verdict(Bound.UNKNOWN, Cause.TOO_SHORT, off)
    window, case = stats.recent, Case(stats, setup)
    if window.batches < FEWEST or not window.step.mean:
        few = f"{window.batches} batches after the first are too few to judge by: at least {FEWEST}"
        return Verdict(Bound.UNKNOWN, Cause.TOO_SHORT, few)
    verdict = _judged(case)
    return replace(verdict, changes=[*verdict.changes, *_beside(case)])


def _judged(case: Case) -> Verdict:
    if case.window.stalled >= NOTICEABLE:
        return _of_input(case)
    if case.shares_the_interpreter:
        return _of_shared_interpreter(case)
    if case.setup.has_device and case.window.lead.p50 < AHEAD * case.window.step.mean:
        return _of_host(case)
    return _of_compute(case)


def _beside(case: Case) -> list[str]:
    """What is worth a change whatever bounds training."""
    return [*_startup(case), *_shared_memory(case)]


def _of_input(case: Case) -> Verdict:
    window, stage = case.window, case.stage
    bound = Bound.COPY if stage in ("copy", "pin") else Bound.INPUT
    cause, changes = cause_of_waiting(case)
    what = "loading in this process" if stage == "load" and not case.setup.workers else STAGES[stage]
    why = (
        f"the {case.consumer} waits for its input {window.stalled:.0%} of the time, {ms(window.stall.mean)} in a step "
        f"of {ms(window.step.mean)}. The slowest stage is {what}: {ms(case.stages[stage])} a batch. Without waiting, "
        f"training would be {case.most:.2f}x as fast."
    )
    return Verdict(bound, cause, why, stage, case.most, changes)


def _of_shared_interpreter(case: Case) -> Verdict:
    """Training that waits for the interpreter, which its own thread does not see as a wait for input."""
    window = case.window
    why = (
        f"loading computes {window.cpu['load'] / window.step.mean:.0%} of each step of {ms(window.step.mean)} in the "
        f"training process, and the interpreter runs one thread at a time. The {case.consumer} waits for input "
        f"{window.stalled:.0%} of the time beside that."
    )
    cause, changes = small_batches(case) or too_few_workers(case)
    return Verdict(Bound.INPUT, cause, why, "load", 1 / (1 - window.cpu["load"] / window.step.mean), changes)


def _of_host(case: Case) -> Verdict:
    window = case.window
    ahead = f"the host is {ms(window.lead.p50)} ahead of the GPU, in steps of {ms(window.step.mean)}"
    line, share = next(iter(case.stats.lines.items()), ("", 0.0))
    if share >= CONCENTRATED and SYNCS.search(source_of(line)):
        why = f"{ahead}, because the loop waits for the GPU at {line}."
        change = (
            f"Read no value from the GPU in each step: the training thread is {share:.0%} of the time at "
            f"`{source_of(line)}`. Do it every 50 steps, or keep the value on the GPU."
        )
        return Verdict(Bound.HOST, Cause.HIDDEN_SYNC, why, "", case.most, [change])
    found = f" It is found most at {line}." if line else ""
    change = (
        "Fewer launches: the step as CUDA graphs by fl.TrainStep(..., graph=True) over fl.PrefetchLoader(static=True), "
        f'see docs/cuda_graphs.md; or torch.compile(model, mode="reduce-overhead"); or larger batches.{found}'
    )
    from_cpp = (
        "TORCHINDUCTOR_CPP_WRAPPER=1 in the environment: a compiled model then launches its kernels from C++, which "
        "takes less of the host's time than Python does."
    )
    buffers = (
        "model.broadcast_buffers = False behind DistributedDataParallel(...), if the model has batch normalisation: "
        'else its statistics are sent to all ranks in each step, see "Several GPUs" in docs/train_step.md.'
    )
    why = f"{ahead}: the GPU waits for work to be launched, and not for input."
    changes = [change]
    if case.setup.launches == "Python":
        changes.append(from_cpp)
    elif not case.setup.launches:
        changes.append(f"Or torch.compile(model), with {from_cpp}")
    if case.setup.ranks > 1:
        changes.append(buffers)
    return Verdict(Bound.HOST, Cause.SLOW_LAUNCHES, why, "", case.most, changes)


def _of_compute(case: Case) -> Verdict:
    setup, window = case.setup, case.window
    why = (
        f"the {case.consumer} waits for its input {window.stalled:.1%} of the time. No change of the input could make "
        f"training more than {case.most:.2f}x as fast."
    )
    workers = setup.workers or 0
    if workers > setup.cores and case.computing * workers > COMPUTING * setup.cores:
        change = (
            f"num_workers={max(1, setup.cores - 1)} instead of {workers}: there are {setup.cores} cores, and the "
            "training thread needs one of them."
        )
        return Verdict(Bound.COMPUTE, Cause.TOO_MANY_WORKERS, why, "", case.most, [change])
    return Verdict(Bound.COMPUTE, Cause.NONE, why, "", case.most)


def _startup(case: Case) -> list[str]:
    """What to say if workers that start anew take a noticeable part of each epoch."""
    again, setup = case.stats.startup[1:], case.setup
    whole = case.stats.total.seconds + sum(case.stats.startup)
    if not again or setup.persistent_workers or not setup.workers or sum(again) < NOTICEABLE * whole:
        return []
    return [
        "persistent_workers=True in the DataLoader: the first batch of an epoch comes after "
        f"{sum(again) / len(again):.2g} s, in which workers start anew."
    ]


def _shared_memory(case: Case) -> list[str]:
    """What to say if the batches that workers may have ready nearly fill /dev/shm, which ends in a bus error."""
    setup, window = case.setup, case.window
    waiting = (setup.workers or 0) * setup.prefetch_factor * window.bytes / max(1, window.batches)
    if not setup.shared_memory or waiting < FULL * setup.shared_memory:
        return []
    return [
        f"More room in /dev/shm, such as docker run --shm-size=16g: it has {setup.shared_memory / GIB:.3g} GiB, and "
        f"{setup.workers} workers may have batches of {waiting / GIB:.3g} GiB there. Or a smaller prefetch_factor."
    ]


def source_of(line: str) -> str:
    """The text of a line ``file:number``; empty if it cannot be read."""
    file, _, number = line.rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""
