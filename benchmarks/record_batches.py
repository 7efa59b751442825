"""Record how long a loader needs for each batch while a model trains, for benchmarks/many_ranks.py.

    python benchmarks/record_batches.py --out one.json            on a GPU: ResNet-50, 256 images a batch, 90 seconds
    torchrun --nproc-per-node 2 benchmarks/record_batches.py --out two.json    on two GPUs, recorded by the first

fastload trains the model of ``fastload bench jpeg`` from JPEG files. The limit, the same step on one batch kept on the
device, is timed just before and just after. All times are in seconds; ``batches`` has a row for each batch, and its
spans begin and end on one clock. Without a GPU a small model trains at a tiny size, which shows that it works.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import distributed

from fastload.arguments import resolved_device
from fastload.bench.harness import meta
from fastload.bench.harness.window import Step, synchronize
from fastload.bench.subjects.file_windows import FileWindows
from fastload.bench.subjects.stages import JpegFiles, prefetched
from fastload.bench.subjects.training import TrainingStep, cudnn_search, describe, replicated
from fastload.bench.suites import jpeg
from fastload.environment import MEASURES
from fastload.stats.batch_times import BatchTimes, Span
from fastload.stats.record import KEPT
from fastload.streams import Timestamp

MODELS = ", ".join(jpeg.MODELS)
DIGITS = 6  # microseconds
LIMIT_PART = 4  # of the recorded steps, as many are timed on the kept batch, before and again after

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Plan:
    """What is recorded: so many ``steps``, after ``warm_up`` others, in one of ``ranks`` processes."""

    model: str
    steps: int
    warm_up: int
    depth: int
    graph: bool
    ranks: int


@app.command()
def main(
    *,
    out: Annotated[Path, typer.Option(help="The JSON file to write.", dir_okay=False, writable=True)],
    steps: Annotated[int, typer.Option(min=2, max=KEPT, help="How many steps to record.")] = 400,
    warm_up: Annotated[int, typer.Option(min=1, help="How many steps to train before.")] = 50,
    model: Annotated[str, typer.Option(help=f"{MODELS}; on the CPU a tiny one trains.")] = "resnet50",
    depth: Annotated[int, typer.Option(min=1, help="How many batches may wait for training.")] = 3,
    graph: Annotated[bool, typer.Option("--graph", help="Train by CUDA graphs.")] = False,
) -> None:
    """Train from JPEG files and write how long each batch took."""
    plan = Plan(model, steps, warm_up, depth, graph, ranks=int(os.environ.get("WORLD_SIZE", "1")))
    check(plan)
    out.parent.mkdir(parents=True, exist_ok=True)
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # the other cores are for the loader
    with one_of(plan.ranks) as rank:
        recorded = record(plan, resolved_device(None))
    if rank == 0:
        out.write_text(json.dumps(recorded) + "\n")
        typer.echo(f"{out}: {steps} batches, {recorded['share']:.3f} of the limit")


def check(plan: Plan) -> None:
    """Refuse what cannot be recorded."""
    if plan.model not in jpeg.MODELS:
        raise typer.BadParameter(f"--model must be one of {MODELS}; got {plan.model!r}")
    if plan.graph and not (torch.cuda.is_available() and plan.ranks == 1):
        raise typer.BadParameter(f"--graph needs a GPU and one process; got {plan.ranks} on {resolved_device(None)}")
    if not MEASURES:
        raise typer.BadParameter("the loader measures nothing: FASTLOAD_CLOCK must not be 'off'")


@contextmanager
def one_of(ranks: int) -> Iterator[int]:
    """Be one of the processes that ``torchrun`` started, each on its own GPU if there are GPUs."""
    if ranks == 1:
        yield 0
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group()
    try:
        yield distributed.get_rank()
    finally:
        distributed.destroy_process_group()


def record(plan: Plan, device: torch.device) -> dict[str, Any]:
    """Train, and return the record."""
    size = jpeg.MODELS[plan.model].on(device)
    with FileWindows.open(size, device) as windows, cudnn_search():
        training = TrainingStep(size.model, device, replicated if plan.ranks > 1 else None)
        before = limit_steps(step_of(training, plan), windows, plan)
        batches = fed_batches(step_of(training, plan), windows.files, plan)
        after = limit_steps(step_of(training, plan), windows, plan)
    limit, trained = before + after, [batch.step or 0.0 for batch in batches]
    settings = {**describe(device), "batch": size.batch, "model": size.model, "warm_up": plan.warm_up}
    return {
        "meta": meta.describe(device, {}, [], settings),
        "ranks": plan.ranks,
        "depth": plan.depth,
        "graph": plan.graph,
        "share": mean(limit) / mean(trained),
        "limit_steps": [round(seconds, DIGITS) for seconds in limit],
        "batches": rows(batches),
    }


def step_of(training: TrainingStep, plan: Plan) -> Step:
    """The step; a graph is captured anew for batches at other addresses."""
    return training.as_graphs() if plan.graph else training


def limit_steps(step: Step, windows: FileWindows, plan: Plan) -> list[float]:
    """How long each step takes on the kept batch, on the device's clock. The warm-up compiles the model, once."""
    images, labels = windows.kept
    device = images.device
    for _ in range(plan.warm_up):
        step(images, labels)
    marks = [Timestamp(device)]
    for _ in range(max(1, plan.steps // LIMIT_PART)):
        step(images, labels)
        marks.append(Timestamp(device))
    synchronize(device)
    return [begin.seconds_to(end) for begin, end in pairwise(marks)]


def fed_batches(step: Step, files: JpegFiles, plan: Plan) -> list[BatchTimes]:
    """What the loader measured of each batch while it fed the step."""
    with prefetched(replace(files, static=plan.graph), files.reading, depth=plan.depth) as loader:
        for images, labels in islice(loader, plan.warm_up + plan.steps):
            step(images, labels)
        synchronize(files.device)
        batches = loader.report(show=False).batches[-plan.steps :]
    if len(batches) < plan.steps or any(batch.step is None for batch in batches):
        raise RuntimeError(f"the loader must have measured {plan.steps} batches after its first; got {len(batches)}")
    return list(batches)


def rows(batches: Iterable[BatchTimes]) -> list[dict[str, Any]]:
    """A row for each batch: its spans on the host and on the device, and the step that ended when it came.

    ``ready`` counts the batches that waited when this one was asked for; the host was ahead of the device by ``lead``.
    """
    return [
        {
            "step": round(batch.step or 0.0, DIGITS),
            "ready": batch.ready,
            "lead": round(batch.lead, DIGITS),
            "host": spans(batch.host),
            "device": spans(batch.device),
        }
        for batch in batches
    ]


def spans(stages: Mapping[str, Span]) -> dict[str, list[float]]:
    return {name: [round(span.begin, DIGITS), round(span.end, DIGITS)] for name, span in stages.items()}


def mean(seconds: list[float]) -> float:
    return sum(seconds) / len(seconds)


if __name__ == "__main__":
    app()
