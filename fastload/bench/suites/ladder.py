"""What each piece of the usual advice is worth when a ViT trains: from plain fp32 to bf16, everything fused.

Every rung keeps what the one before it does and changes one thing more. All train from the same seed on the same
batches of sample photographs, so that speed can be weighed against loss and held-out accuracy.
"""

from __future__ import annotations

import statistics
from contextlib import closing
from dataclasses import asdict

import torch

from fastload.bench.harness.check import check_batches
from fastload.bench.harness.plan import Plan
from fastload.bench.harness.row import Row, row
from fastload.bench.harness.suite import Sizes, Suite
from fastload.bench.harness.turns import Figure, Figures, by_turns
from fastload.bench.harness.window import allocated_gib, peak_gib, reset_peak, run, timed_window
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.feed import Feed
from fastload.bench.subjects.learner import LadderSize, Learner
from fastload.bench.subjects.photographs import PhotographSplits, Sample
from fastload.bench.subjects.rung import RUNGS, Rung
from fastload.bench.subjects.workers import worker_count
from fastload.kernels import reference

__all__ = ["SUITE"]

CHECKED_BATCHES = 2
LAST_LOSSES = 10
SIZES = Sizes(
    gpu=LadderSize(),
    cpu=LadderSize(
        side=32,
        layers=1,
        heads=2,
        width=16,
        batch=8,
        photographs=20,
        train_steps=2,
        learning_rate_warm_up=2,
        window_steps=1,
        window_warm_up=1,
    ),
)


def measure(plan: Plan[LadderSize]) -> list[Row]:
    size, device = plan.size, plan.device
    photographs = PhotographSplits.sample(size.photographs, size.side)
    feed = Feed(photographs.train, size.batch, device)
    for name in plan.track(plan.subjects, "checking"):
        _check(name, feed)
    held_out = _held_out(photographs, size.batch, device)
    learners: dict[str, Learner] = {}
    peaks: dict[str, float | None] = {}
    learned: list[Row] = []
    for name in plan.track(plan.subjects, "training"):
        learners[name], losses, peaks[name] = _train(RUNGS[name], size, photographs.classes, feed)
        learned.append(
            row(plan.case, name, "final_loss", [statistics.fmean(losses[-LAST_LOSSES:])], first_loss=losses[0])
        )
        for suffix, precision in learners[name].evaluations.items():
            evaluation = learners[name].evaluate(held_out, precision)
            learned.append(row(plan.case, name, f"eval_loss{suffix}", [evaluation.loss]))
            learned.append(row(plan.case, name, f"eval_accuracy{suffix}", [evaluation.accuracy]))

    def speeds(name: str) -> Figures:
        learner, batches = learners[name], feed.batches(RUNGS[name])
        window = timed_window(
            learner.step, batches, warm_up=size.window_warm_up, steps=size.window_steps, device=device
        )
        evaluated = {
            f"eval_img_per_s{suffix}": Figure(learner.evaluate(held_out, precision).img_per_s)
            for suffix, precision in learner.evaluations.items()
        }
        img_per_s = Figure(size.batch * window.steps_per_s, {"peak_gib": peaks[name]})  # the peak while it was trained
        return {"img_per_s": img_per_s, "ms": Figure(1000 / window.steps_per_s), **evaluated}

    return by_turns(plan, plan.subjects, speeds, ratios={"img_per_s": SUITE.baseline}) + learned


def _check(name: str, feed: Feed) -> None:
    rung = RUNGS[name]
    first = feed.uint8_batches()[:CHECKED_BATCHES]
    check_batches(name, feed.batches(rung), first, dtype=rung.dtype, arithmetic=torch.float32)


def _held_out(photographs: PhotographSplits, batch: int, device: torch.device) -> list[Sample]:
    images, labels = (tensor.to(device) for tensor in photographs.held_out.tensors)
    images = reference.flip_normalize(images, MEAN, STD)
    return list(zip(torch.split(images, batch), torch.split(labels, batch), strict=True))


def _train(rung: Rung, size: LadderSize, classes: int, feed: Feed) -> tuple[Learner, list[float], float | None]:
    """Return a trained learner, its losses, and the most memory that it took beside that of other learners."""
    others = allocated_gib(feed.device)
    learner = Learner(rung, size, classes, feed.device)
    with closing(feed.batches(rung)) as batches:
        # The first steps compile, and make the optimizer's state.
        losses = run(learner.step, batches, size.window_warm_up)
        reset_peak(feed.device)
        losses += run(learner.step, batches, size.train_steps - size.window_warm_up)
        peak = peak_gib(feed.device)
    return learner, torch.stack(losses).tolist(), None if peak is None else peak - others


def settings(device: torch.device) -> dict[str, object]:
    return {
        **asdict(SIZES.on(device)),
        "rungs": {name: asdict(rung) for name, rung in RUNGS.items()},
        "workers": worker_count(),
        "optimizer": "AdamW, linear warm-up",
        "compiled": "bf16_fused and limit" if device.type == "cuda" else "none",
        "limit": "the step of bf16_fused, all training batches kept on the device (peak_gib counts them)",
        "final_loss": f"mean of the last {LAST_LOSSES} of train_steps",
        "evaluation": "not compiled, batches on the device, after train_steps; fp32 and autocast",
    }


SUITE = Suite(
    name="ladder",
    cases={"vit_b16_b128": SIZES},
    subjects=tuple(RUNGS),
    baseline="limit",
    packages={},
    runs=5,
    settings=settings,
    measure=measure,
)
