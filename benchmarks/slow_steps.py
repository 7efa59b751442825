"""Tell what the threads of a training process do in slow steps, and in others.

    python benchmarks/slow_steps.py --out slow.json            on a GPU: ResNet-50, 256 images a batch, two minutes

A subject of ``fastload bench jpeg`` feeds its model from JPEG files, in one pass. Meanwhile a second process looks at
all threads of the first, as Linux tells of them, and times a short loop of its own. For each thread that used a
processor, the table has the milliseconds of a step in which it ran, waited for a core and slept, and how often it fell
asleep: in slow steps, and in the others. A step is slow if the host took longer for it and those around it than for the
one in the middle; where the host makes up for a long step with shorter ones, none is. A thread that sleeps more waits
for a lock or for another thread, one that runs more is on a slow core or has more to do, and one that waits for a core
has too few. Without a GPU a small model trains at a tiny size, which shows that it works.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import torch
import typer
from rich.console import Console
from rich.table import Table

from fastload.arguments import resolved_device
from fastload.bench.harness import meta
from fastload.bench.harness.window import synchronize
from fastload.bench.subjects.file_windows import FileWindows
from fastload.bench.subjects.stages import STAGES
from fastload.bench.subjects.training import TrainingStep, cudnn_search, describe
from fastload.bench.suites import jpeg
from fastload.interrupts import CORE, serving_cores

MODELS, SUBJECTS = ", ".join(jpeg.MODELS), ", ".join(STAGES)
SLOW = 1.05  # times the step in the middle
AROUND = 8  # steps, of which the mean is looked at
PERIOD = 0.01  # seconds between two looks at the threads
LOOP = range(8_000)  # added up, a fifth of a millisecond
LEAST_MS = 0.2  # of a step: a thread that ran for less is left out of the table
MS, NS = 1e3, 1e9  # of a second

app = typer.Typer(add_completion=False)


@dataclass
class Watched:
    """What the watcher saw, each with the second at which it was seen: Linux gives all processes one clock.

    Attributes:
        threads: for each thread, (seen, ran, waited for a core, fell asleep, core): seconds, and how often.
        names: of the threads, by Linux.
        late: (seen, by how much later than asked for the watcher woke up, how long its loop took), in seconds.
        taken: (core seconds that the hypervisor took, and those of all the machine), since the machine started.
    """

    threads: dict[int, list[tuple[float, ...]]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    late: list[tuple[float, float, float]] = field(default_factory=list)
    taken: list[tuple[float, float]] = field(default_factory=list)


@app.command()
def main(
    *,
    out: Annotated[Path, typer.Option(help="The JSON file to write.", dir_okay=False, writable=True)],
    steps: Annotated[int, typer.Option(min=2, help="How many steps to watch.")] = 1_000,
    warm_up: Annotated[int, typer.Option(min=1, help="How many steps to train before.")] = 50,
    model: Annotated[str, typer.Option(help=f"{MODELS}; on the CPU a tiny one trains.")] = "resnet50",
    subject: Annotated[str, typer.Option(help=f"Who feeds it: {SUBJECTS}.")] = "fastload",
) -> None:
    """Train from JPEG files, and tell what each thread did in slow steps and in the others."""
    if model not in jpeg.MODELS:
        raise typer.BadParameter(f"--model must be one of {MODELS}; got {model!r}")
    if subject not in STAGES:
        raise typer.BadParameter(f"--subject must be one of {SUBJECTS}; got {subject!r}")
    if not Path("/proc/self/schedstat").exists():
        raise typer.BadParameter("this system does not tell how long threads ran: /proc/self/schedstat is missing")
    device = resolved_device(None)
    found = summary(*watched_steps(model, subject, steps, warm_up, device))
    settings = {**describe(device), "model": model, "subject": subject, "steps": steps, "warm_up": warm_up}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"meta": meta.describe(device, {}, [], settings), **found}) + "\n")
    show(found)


def watched_steps(
    model: str, subject: str, steps: int, warm_up: int, device: torch.device
) -> tuple[np.ndarray, np.ndarray, dict[int, str], Watched]:
    """When each step ended on the host, how long it had waited for its batch, Python's names, and what was seen."""
    size = jpeg.MODELS[model].on(device)
    with FileWindows.open(size, device) as windows, cudnn_search():
        training = TrainingStep(size.model, device)
        jpeg.compile_step(windows, training)
        with closing(STAGES[subject](windows.files)) as batches:
            watcher = Watcher(os.getpid())
            for images, labels in islice(batches, warm_up):
                training(images, labels)
            names = {thread.native_id or 0: thread.name for thread in threading.enumerate()}
            ends, waits = [time.monotonic()], []
            for images, labels in islice(batches, steps):
                waits.append(time.monotonic() - ends[-1])
                training(images, labels)
                ends.append(time.monotonic())
            synchronize(device)
            return np.array(ends), np.array(waits), names, watcher.stop()


class Watcher:
    """A process that watches the threads of another, from now on until :meth:`stop`."""

    def __init__(self, process: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._control, there = spawn.Pipe()
        self._watching = spawn.Process(target=watch, args=(process, there), daemon=True)
        self._watching.start()
        self._control.recv()  # it watches

    def stop(self) -> Watched:
        self._control.send("enough")
        seen: Watched = self._control.recv()
        self._watching.join()
        return seen


def watch(process: int, control: Connection) -> None:
    """Look at the threads of a process again and again, until told that it is enough, and send what was seen."""
    seen = Watched()
    control.send("watching")
    while not control.poll():
        asked = time.monotonic()
        time.sleep(PERIOD)
        woken = time.monotonic()
        sum(LOOP)
        seen.late.append((woken, woken - asked - PERIOD, time.monotonic() - woken))
        cores = psutil.cpu_times()
        seen.taken.append((cores.steal, sum(cores)))
        look(process, seen)
    control.send(seen)


def look(process: int, seen: Watched) -> None:
    """Note how far each thread of a process is that has run since the last look."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError, ValueError, IndexError):  # it has just ended
            ran, waited, _ = (int(number) for number in (thread / "schedstat").read_text().split())
            rows = seen.threads.setdefault(int(thread.name), [])
            if rows and rows[-1][1] == ran / NS:
                continue
            core = int((thread / "stat").read_bytes().rpartition(b")")[2].split()[CORE])
            status = dict(line.split(":", 1) for line in (thread / "status").read_text().splitlines())
            asleep = int(status["voluntary_ctxt_switches"])
            seen.names.setdefault(int(thread.name), status["Name"].strip())
            now = time.monotonic()
            if rows and now - rows[-1][0] > 2 * PERIOD:
                rows.append((now - PERIOD, *rows[-1][1:]))  # until a moment ago it slept
            rows.append((now, ran / NS, waited / NS, asleep, core))


def summary(ends: np.ndarray, waits: np.ndarray, names: dict[int, str], seen: Watched) -> dict[str, Any]:
    """What threads did in slow steps and in the others, milliseconds of a step."""
    took = np.diff(ends)
    is_slow = slow_steps(took)
    late = np.array(seen.late)
    of_step = np.searchsorted(ends, late[:, 0]) - 1
    within = (of_step >= 0) & (of_step < len(took))
    watched_slow = is_slow[of_step[within]]
    threads = [
        {"thread": names.get(thread, seen.names.get(thread, "")), **of_thread(np.array(rows), ends, is_slow)}
        for thread, rows in seen.threads.items()
        if len(rows) > 1
    ]
    usual_loop = np.median(late[:, 2])
    return {
        "step_ms": rounded(MS * took),
        "wait_ms": rounded(MS * waits),
        "slow": np.flatnonzero(is_slow).tolist(),
        "interrupt_cores": sorted(serving_cores()),
        "stolen": stolen(np.array(seen.taken)),
        "machine": {
            kind: {
                "woke_late_ms": mean(MS * late[within][rows, 1]),
                "loop_ms": mean(MS * late[within][rows, 2]),
                "slow_loops": mean(late[within][rows, 2] > 1.5 * usual_loop),
            }
            for kind, rows in (("slow", watched_slow), ("usual", ~watched_slow))
        },
        "threads": sorted(threads, key=lambda row: -row["usual"]["ran"]),
    }


def slow_steps(took: np.ndarray) -> np.ndarray:
    """Whether each step and those around it took longer than the one in the middle."""
    around = np.convolve(took, np.full(AROUND, 1 / AROUND), mode="same")[: len(took)]
    is_slow: np.ndarray = around > SLOW * np.median(took)
    return is_slow


def of_thread(rows: np.ndarray, ends: np.ndarray, is_slow: np.ndarray) -> dict[str, Any]:
    """How long a thread ran, waited for a core and slept a step, how often it fell asleep, and where it ran."""
    ran, waited, asleep = (np.diff(np.interp(ends, rows[:, 0], rows[:, column])) for column in (1, 2, 3))
    slept = np.diff(ends) - ran - waited
    core = rows[np.clip(np.searchsorted(rows[:, 0], ends[1:]), 0, len(rows) - 1), 4].astype(int)
    serving = np.isin(core, sorted(serving_cores()))
    return {
        kind: {
            "ran": mean(MS * ran[steps]),
            "waited": mean(MS * waited[steps]),
            "slept": mean(MS * slept[steps]),
            "fell_asleep": mean(asleep[steps]),
            "on_interrupt_core": mean(serving[steps]),
        }
        for kind, steps in (("slow", is_slow), ("usual", ~is_slow))
    } | {"ran_ms": rounded(MS * ran), "core": core.tolist()}


def stolen(rows: np.ndarray) -> float:
    """The share of the machine's core time that the hypervisor took."""
    taken, of_all = rows[-1] - rows[0]
    return float(taken / of_all) if of_all else 0.0


def show(found: dict[str, Any]) -> None:
    """Print what was found, and the threads that ran at all as a table."""
    steps, slow = np.array(found["step_ms"]), np.array(found["slow"], dtype=int)
    usual = np.delete(steps, slow)
    typer.echo(
        f"{len(slow)} of {len(steps)} steps are slow: {mean(steps[slow])} ms instead of {mean(usual)} on the host"
    )
    for kind, machine in found["machine"].items():
        typer.echo(f"the watcher in {kind} steps: {machine}")
    typer.echo(f"stolen: {found['stolen']:.4f}; cores of interrupts: {found['interrupt_cores']}")
    table = Table(
        "thread",
        "ran",
        "waited for a core",
        "slept",
        "fell asleep",
        "on an interrupts' core",
        title="ms a step: slow, usual",
    )
    for row in found["threads"]:
        if max(row["slow"]["ran"], row["usual"]["ran"]) >= LEAST_MS:
            columns = ("ran", "waited", "slept", "fell_asleep", "on_interrupt_core")
            table.add_row(row["thread"], *(f"{row['slow'][each]}, {row['usual'][each]}" for each in columns))
    Console(width=140).print(table)


def mean(values: np.ndarray) -> float:
    return round(float(values.mean()), 2) if len(values) else 0.0


def rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 2) for value in values]


if __name__ == "__main__":
    app()
