"""Tell what a training step takes of the host, from a kept batch and from files, and what makes it shorter.

    python benchmarks/host_time.py --out host_time.json                   on a GPU: ResNet-50, launched in two ways
    python benchmarks/host_time.py --out whole.json --images 256          the same on whole batches
    python benchmarks/host_time.py --out cores.json --cores "as they are,spinning" --variants ordinary

Training's threads share the interpreter's lock and the driver's with those that feed it. A thread that waits for a lock
sleeps, and no profiler shows it, since nothing runs meanwhile. So blocks of steps take turns in random order: from a
batch that is kept on the device, and from JPEG files; with kernels that are launched from Python (``ordinary``) and
from C++ (``cpp``), which needs no interpreter. Each step trains on so few images that the device waits for the host.

Cores may be kept awake as well. One that has nothing to do falls asleep, and to wake it takes from a few microseconds
to some tenths of a millisecond, by the processor, and by whether it is a virtual machine's:

- ``latency``: the file /dev/cpu_dma_latency asks Linux for cores that wake up at once, while it is open. Root may.
- ``spinning``: on each core a process of the class SCHED_IDLE, which gives way to any other, and never ends.
- ``together``: this process's threads share six cores, which so have less time to fall asleep; where there are twelve.

Without a GPU a small model trains at a tiny size, not compiled, which shows that it works.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from fastload.arguments import resolved_device
from fastload.bench.harness import meta
from fastload.bench.harness.window import Batches, synchronize
from fastload.bench.subjects.file_windows import FileWindows
from fastload.bench.subjects.stages import STAGES
from fastload.bench.subjects.training import TrainingStep, compiling, cudnn_search, describe
from fastload.bench.suites import jpeg
from fastload.interrupts import serving_cores

LATENCY = Path("/dev/cpu_dma_latency")
TASKS = Path("/proc/self/task")
IDLE = Path("/sys/devices/system/cpu")
SPIN = """
import os
os.sched_setaffinity(0, [{core}])
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print("spins", flush=True)
while os.getppid() == {parent}:
    for _ in range(1_000_000):
        pass
"""
BACKWARD = "pt_autograd"  # the names of PyTorch's threads for backward begin so
GROUPS = ("training", "backward", "others")
INPUTS = ("kept", "fed")
VARIANTS = ("ordinary", "cpp")
CORES = "as they are"
WAYS = (CORES, "latency", "spinning", "together")
MS, US, NS = 1e3, 1e6, 1e9  # of a second
ANSWERS = 300  # times that a thread is woken to measure how long it takes
APART = 1e-3  # seconds between them, in which cores fall asleep
FEW = 6  # cores
FILLING = 8  # steps of a block before those that are timed

app = typer.Typer(add_completion=False)

Way = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Lengths:
    """Steps: of a block, and before the first one, until queues and buffers have their size."""

    block: int
    warm_up: int


GPU, CPU = Lengths(block=40, warm_up=200), Lengths(block=2, warm_up=1)


@app.command()
def main(
    *,
    out: Annotated[Path, typer.Option(help="The JSON file to write.", dir_okay=False, writable=True)],
    seconds: Annotated[float, typer.Option(min=0, help="For how long to measure blocks, at least one of each.")] = 180,
    images: Annotated[int, typer.Option(min=1, help="Of each batch, to train on.")] = 48,
    subject: Annotated[str, typer.Option(help=f"Who feeds the model: {', '.join(STAGES)}.")] = "fastload",
    variants: Annotated[str, typer.Option(help="How kernels are launched, comma-separated.")] = "ordinary,cpp",
    cores: Annotated[str, typer.Option(help=f"How cores are, comma-separated: {', '.join(WAYS)}.")] = CORES,
) -> None:
    """Train by turns from a kept batch and from files, launched from Python and from C++."""
    _require("--subject", [subject], STAGES)
    _require("--variants", chosen := variants.split(","), VARIANTS)
    _require("--cores", wanted := cores.split(","), WAYS)
    if not Path("/proc/self/schedstat").exists():
        raise typer.BadParameter("this system does not tell how long threads ran: /proc/self/schedstat is missing")
    device = resolved_device(None)
    with ways(wanted) as found:
        _require("--cores, as far as this system allows it,", wanted, found)
        woken = {name: wake_up_us(way) for name, way in found.items()}
        rows = measured(found, chosen, subject, images, seconds, device)
    settings = {**describe(device), "subject": subject, "images": images, "idle": idle_states()}
    result = {"meta": meta.describe(device, {}, [], settings), "wake_up_us": woken, "rows": rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result) + "\n")
    show(woken, rows)


def _require(option: str, chosen: Sequence[str], known: Iterable[str]) -> None:
    for name in chosen:
        if name not in known:
            raise typer.BadParameter(f"{option} must be of {', '.join(known)}; got {name!r}")


@contextmanager
def ways(wanted: Sequence[str] = WAYS) -> Iterator[dict[str, Way]]:
    """Those of the wanted ways to keep cores awake that this system has: contexts in which they are, by name."""
    found: dict[str, Way] = {}
    with ExitStack() as spinning:
        if CORES in wanted:
            found[CORES] = nullcontext
        if "latency" in wanted:
            with suppress(OSError), without_latency():
                found["latency"] = without_latency
        if "spinning" in wanted:
            with suppress(OSError):
                found["spinning"] = spinning.enter_context(spinners())
        if "together" in wanted and len(os.sched_getaffinity(0)) >= 2 * FEW:
            found["together"] = together
        yield found


@contextmanager
def without_latency() -> Iterator[None]:
    """Ask Linux for cores that wake up at once."""
    with LATENCY.open("r+b", buffering=0) as asked:
        asked.write(struct.pack("i", 0))
        yield


@contextmanager
def spinners() -> Iterator[Way]:
    """Processes that keep this one's cores awake, in the context that is yielded; they are stopped outside of it.

    Raises:
        OSError: this system has no class for processes that give way to all others, or does not allow it.
    """
    processes: list[subprocess.Popen[str]] = []

    def tell(number: signal.Signals) -> None:
        for process in processes:
            process.send_signal(number)

    @contextmanager
    def spinning() -> Iterator[None]:
        tell(signal.SIGCONT)
        yield
        tell(signal.SIGSTOP)

    try:
        for core in sorted(os.sched_getaffinity(0)):
            code = SPIN.format(core=core, parent=os.getpid())
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-SEc", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            )
        if not all(process.stdout is not None and process.stdout.readline() for process in processes):
            raise OSError("no process of the class SCHED_IDLE")
        tell(signal.SIGSTOP)
        yield spinning
    finally:
        for process in processes:
            with process:
                process.kill()


@contextmanager
def together(count: int = FEW) -> Iterator[None]:
    """Keep the threads of this process on a few cores, of which none serves interrupts, and workers where they are."""
    everywhere = os.sched_getaffinity(0)
    bind(set(sorted(everywhere - serving_cores())[-count:]))
    yield
    bind(everywhere)


def bind(cores: set[int]) -> None:
    for thread in TASKS.iterdir():
        with suppress(OSError):  # it has just ended
            os.sched_setaffinity(int(thread.name), cores)


def wake_up_us(way: Way) -> dict[str, float]:
    """Microseconds until a thread that sleeps has answered another, which sleeps meanwhile: two are woken."""
    ask_read, ask = os.pipe()
    answer_read, answer = os.pipe()

    def answering() -> None:
        while os.read(ask_read, 1) != b".":
            os.write(answer, b"!")

    thread = threading.Thread(target=answering)
    thread.start()
    took = []
    with way():
        for _ in range(ANSWERS):
            time.sleep(APART)
            begin = time.perf_counter()
            os.write(ask, b"?")
            os.read(answer_read, 1)
            took.append(US * (time.perf_counter() - begin))
    os.write(ask, b".")
    thread.join()
    for end in (ask_read, ask, answer_read, answer):
        os.close(end)
    *_, p90 = statistics.quantiles(took, n=10)
    return {"median": round(statistics.median(took), 1), "p90": round(p90, 1)}


def measured(
    found: dict[str, Way], variants: Sequence[str], subject: str, images: int, seconds: float, device: torch.device
) -> list[dict[str, Any]]:
    """The blocks, in the order in which they were measured."""
    size = jpeg.MODELS["resnet50"].on(device)
    lengths = CPU if device.type == "cpu" else GPU
    with FileWindows.open(size, device) as windows, cudnn_search():
        steps = {variant: training_on(images, size.model, device, from_cpp=variant == "cpp") for variant in variants}
        for variant, step in steps.items():
            with compiling(from_cpp=variant == "cpp"):
                step(*windows.kept)

        def kept() -> Batches:
            while True:
                yield windows.kept

        with closing(STAGES[subject](windows.files)) as fed:
            sources = {"kept": kept(), "fed": fed}
            for source, step in product(sources.values(), steps.values()):
                for batch in islice(source, lengths.warm_up):
                    step(*batch)
            rows: list[dict[str, Any]] = []
            end = time.monotonic() + seconds
            while not rows or time.monotonic() < end:
                turns = list(product(sources, steps, found))
                for name, variant, way in random.sample(turns, k=len(turns)):
                    with found[way]():
                        row = block(steps[variant], sources[name], lengths.block, device)
                    rows.append({"input": name, "variant": variant, "cores": way, **row})
            return rows


def training_on(images: int, model: str, device: torch.device, *, from_cpp: bool) -> Callable[..., None]:
    """The benchmark's step, on some images of each batch."""
    training = TrainingStep(model, device, from_cpp=from_cpp)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        training(inputs[:images], targets[:images])

    return step


def block(step: Callable[..., None], batches: Batches, steps: int, device: torch.device) -> dict[str, Any]:
    """Milliseconds of a step, and what groups of threads did in one: how long they ran, and how often fell asleep."""
    for batch in islice(batches, FILLING):
        step(*batch)
    synchronize(device)
    before, begin = thread_times(), time.perf_counter()
    for batch in islice(batches, steps):
        step(*batch)
    synchronize(device)
    took, after = time.perf_counter() - begin, thread_times()
    row: dict[str, Any] = {"step_ms": MS * took / steps}
    for group in GROUPS:
        ran, slept = (
            sum(
                now[place] - before[thread][place]
                for thread, now in after.items()
                if thread in before and now[2] == group
            )
            for place in (0, 1)
        )
        row[group] = {"ran_ms": MS * ran / steps, "fell_asleep": slept / steps}
    return row


def thread_times() -> dict[int, tuple[float, int, str]]:
    """Of each thread of this process: the seconds that it ran, how often it fell asleep, and its group."""
    found = {}
    for thread in TASKS.iterdir():
        with suppress(OSError):  # it has just ended
            ran = int((thread / "schedstat").read_text().split()[0]) / NS
            status = dict(line.split(":", 1) for line in (thread / "status").read_text().splitlines())
            name, slept = status["Name"].strip(), int(status["voluntary_ctxt_switches"])
            is_training = int(thread.name) == threading.get_native_id()
            group = "training" if is_training else "backward" if name.startswith(BACKWARD) else "others"
            found[int(thread.name)] = ran, slept, group
    return found


def idle_states() -> dict[str, str]:
    """How cores of this system fall asleep, and the microseconds that Linux expects each state to take to leave."""
    told = {}
    for name in ("current_driver", "current_governor"):
        with suppress(OSError):
            told[name] = (IDLE / "cpuidle" / name).read_text().strip()
    for state in sorted((IDLE / "cpu0" / "cpuidle").glob("state*")):
        with suppress(OSError):
            told[(state / "name").read_text().strip()] = (state / "latency").read_text().strip()
    return told


def show(woken: dict[str, dict[str, float]], rows: Sequence[dict[str, Any]]) -> None:
    """Print how long threads take to wake each other, and the medians of the blocks."""
    for way, took in woken.items():
        typer.echo(f"cores {way}: two threads wake each other in {took['median']} µs, p90 {took['p90']}")
    table = Table(
        "input", "launches", "cores", "ms a step", "blocks", *(f"{group}: ran, fell asleep" for group in GROUPS)
    )
    variants = dict.fromkeys(row["variant"] for row in rows)
    for source, variant, way in product(INPUTS, variants, woken):
        blocks = [row for row in rows if (row["input"], row["variant"], row["cores"]) == (source, variant, way)]
        groups = (
            f"{_median(blocks, group, 'ran_ms'):.1f}, {_median(blocks, group, 'fell_asleep'):.0f}" for group in GROUPS
        )
        table.add_row(source, variant, way, _spread([row["step_ms"] for row in blocks]), str(len(blocks)), *groups)
    Console(width=150).print(table)


def _median(blocks: Sequence[dict[str, Any]], group: str, figure: str) -> float:
    return statistics.median(row[group][figure] for row in blocks)


def _spread(values: Sequence[float]) -> str:
    """The median ± half the interquartile range."""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.1f} ± {(high - low) / 2:.1f}"


if __name__ == "__main__":
    app()
