"""Use fastload in random ways for a given time, on the GPU if there is one, and check every batch.

    python -m tests.soak --seconds 600 --json soak.json
    python -m tests.soak --seed 12345            # one episode again: the same program, on a device with its own timing
    python -m tests.soak --seconds 600 --no-gc   # without the cycle collector, as large trainings run

An episode is a loader with a random structure, source, depth and transform, and a consumer with random lags, streams,
retained batches, breaks, faults, alarms within ``next`` and forked children. Every tensor of every batch holds a
pattern that tells its batch and its place in it; patterns are compared on the device, on the stream that uses the
batch, when that stream comes to it. Some episodes are of mutated files.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import json
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import fastload as fl
from fastload import transforms as T
from fastload.prefetch.iterator import PrefetchIterator
from fastload.transfer.transfer import move_the_rest
from tests import fuzz_files
from tests.adversary.program import BrokenError, Own, Whole, tensors_of

REPORT_EVERY = 30.0
HANGING = 120.0  # seconds an episode may take before all stacks are printed and the process ends
SAMPLES = 4  # of the host's memory in half of the time, at least, to tell whether it grows
SEGMENT = 20 * 2**20  # bytes that the allocator asks the device for at once
CYCLES = 1_500_000  # of the GPU's clock: about a millisecond
DTYPES = (torch.int64, torch.float32, torch.uint8, torch.int32)  # of what is not an image
STEP = 37  # from one batch's pattern to the next one's
SHIFT = 5  # what the transform adds
SHORT = 3  # samples of the last batch; the others have more
FILES_EVERY = 8  # one episode in so many is of mutated files


def pattern(number: int, leaf: int, shape: tuple[int, ...], dtype: torch.dtype, device: Any = "cpu") -> torch.Tensor:
    count = int(torch.Size(shape).numel())
    values = torch.arange(count, device=device) + (number * STEP + leaf * 11)
    return (values % 251).to(dtype).view(shape)


def leaves(episode: Episode, number: int, device: Any = "cpu") -> list[torch.Tensor]:
    rows = SHORT if number == episode.batches - 1 else episode.rows
    images = pattern(number, 0, (rows, 3, episode.size, episode.size), torch.uint8, device)
    others = [
        pattern(number, 1 + leaf, (rows, 1 + leaf), dtype, device)
        for leaf, dtype in zip(range(episode.labels), cycle(DTYPES), strict=False)
    ]
    return [images, *others]


def padded(parts: list[torch.Tensor], rows: int) -> list[torch.Tensor]:
    """With zeros after the samples, and a mask of samples."""
    zeros = [part.new_zeros(rows - len(part), *part.shape[1:]) for part in parts]
    mask = torch.arange(rows, device=parts[0].device) < len(parts[0])
    return [*(torch.cat(pair) for pair in zip(parts, zeros, strict=True)), mask]


STRUCTURES: dict[str, Callable[[list[torch.Tensor]], Any]] = {
    "tuple": tuple,
    "dict": lambda parts: {"images": parts[0], "targets": [{"value": part, "name": "x"} for part in parts[1:]]},
    "nested": lambda parts: [parts[0], ("text", [parts[1:], None])],
    "whole": lambda parts: [parts[0], Whole(*parts[1:])],
    "own": lambda parts: (parts[0], [Own(part) for part in parts[1:]]),
}
PLAIN = ("tuple", "dict", "nested")  # in which there is nothing but tensors


@dataclass(frozen=True)
class Episode:
    """What is done in one episode, drawn from its seed."""

    seed: int
    structure: str
    source: str
    transform: str
    depth: int
    batches: int
    rows: int
    size: int
    labels: int
    passes: int
    side_lag: float  # most milliseconds of a batch, and so on
    lag: float
    fault: str
    fails_at: int
    leave: str
    static: fl.Static | None
    alarm: float  # most milliseconds until one within `next`; 0: there is none
    fork_at: int | None  # the batch before which a child is forked

    @staticmethod
    def drawn(seed: int, *, is_tiny: bool) -> Episode:
        draw = random.Random(seed)
        transform = draw.choice(["none", "add", "in place", "normalize"])
        faults = ["loader"] if transform == "none" else ["loader", "transform", "memory"]
        batches = draw.choice([1, 5, 20, 20, 40, 80])
        structure = draw.choice(list(STRUCTURES))
        return Episode(
            seed=seed,
            structure=structure,
            source=draw.choice(["pageable", "pinned", "reused"]) if draw.random() < 0.95 else "workers",
            transform=transform,
            depth=draw.choice([1, 1, 2, 2, 3, 8]),
            batches=batches,
            rows=4 if is_tiny else draw.choice([4, 16, 64]),
            size=8 if is_tiny else draw.choice([8, 64, 128]),
            labels=draw.choice([1, 2, 8, 30]),
            passes=draw.choice([1, 1, 2, 3]),
            side_lag=draw.choice([0, 0, 1, 5]),
            lag=draw.choice([0, 1, 2, 10]),
            fault=draw.choice([""] * len(faults) + faults),
            fails_at=draw.randrange(batches),
            leave=draw.choice(["end", "end", "drop", "close", "raise", "open"]),
            static=_static(draw) if structure in PLAIN else None,
            alarm=draw.choice([0, 0, 1, 3]),
            # A child of a process that uses a GPU cannot use it.
            fork_at=draw.randrange(batches) if is_tiny and draw.random() < 0.1 else None,
        )

    @property
    def short(self) -> str:
        """What becomes of the last batch, which has fewer samples than the first."""
        return self.static.short if self.static else "dynamic"

    @property
    def yields(self) -> int:
        """How many batches come to the consumer."""
        return self.batches - (self.short == "drop" and self.batches > 1)


def _static(draw: random.Random) -> fl.Static | None:
    short = draw.choice(["", "", "", "dynamic", "drop", "pad"])
    poison = draw.random() < 0.5
    return fl.Static(short, poison=poison) if short else None


class Batches(Dataset):
    """The episode's batches: in fresh memory, pageable or pinned, or in pinned buffers that are used again."""

    def __init__(self, episode: Episode, device: torch.device) -> None:
        self.episode = episode
        self.is_cuda = device.type == "cuda"

    def __len__(self) -> int:
        return self.episode.batches

    def __getitem__(self, number: int) -> Any:
        return STRUCTURES[self.episode.structure](self.parts(number))

    def parts(self, number: int) -> list[torch.Tensor]:
        if self.episode.fault == "loader" and number == self.episode.fails_at:
            raise BrokenError(f"batch {number}")
        return leaves(self.episode, number)

    def __iter__(self) -> Iterator[Any]:
        reused: dict[torch.Size, list[torch.Tensor]] = {}
        for number in range(len(self)):
            parts = self.parts(number)
            if self.is_cuda and self.episode.source == "pinned":
                parts = [part.pin_memory() for part in parts]
            if self.is_cuda and self.episode.source == "reused" and self.episode.structure != "own":
                if parts[0].shape not in reused:
                    reused[parts[0].shape] = [part.pin_memory() for part in parts]
                parts = [buffer.copy_(part) for buffer, part in zip(reused[parts[0].shape], parts, strict=True)]
            yield STRUCTURES[self.episode.structure](parts)


class Device:
    """Streams and lags where there are any."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"
        self.second, self.third = (torch.cuda.Stream(), torch.cuda.Stream()) if self.is_cuda else (None, None)

    def under(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream) if stream is not None else nullcontext()

    def current(self) -> Any:
        return torch.cuda.current_stream() if self.is_cuda else None

    def lag(self, milliseconds: float) -> None:
        if milliseconds and self.is_cuda:
            torch.cuda._sleep(int(milliseconds * CYCLES))
        elif milliseconds:
            time.sleep(milliseconds / 10_000)

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def memory(self) -> int:
        """Bytes of all tensors on the device."""
        self.synchronize()
        return torch.cuda.memory_allocated() if self.is_cuda else 0


class Play:
    """One episode: plays it, and notes what is wrong."""

    def __init__(self, episode: Episode, device: Device, deadline: float) -> None:
        self.episode = episode
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._device = device
        self._deadline = deadline
        self._draw = random.Random(episode.seed + 1)
        self._background = threading.local()  # each pass has a thread, which counts what it prepares
        self._flags: list[tuple[int, torch.Tensor]] = []
        self._kept: list[Kept] = []
        self._errors: list[BaseException] = []

    def run(self) -> None:
        episode, device = self.episode, self._device
        loader = fl.PrefetchLoader(
            _loader(episode, device),
            transform=self._transform(),
            depth=episode.depth,
            device=device.device,
            static=episode.static or False,
        )
        open_passes = []
        for _ in range(episode.passes):
            iterator = iter(loader)
            try:
                self._consume(iterator)
            except BrokenError as error:
                self._errors.append(error)
            if episode.static:
                self._let_go(None)
            if episode.leave == "close":
                loader.close()
            if episode.leave == "open":
                open_passes.append(iterator)
            del iterator
        open_passes.clear()
        loader.close()
        self._let_go(None)
        self._errors.clear()
        device.synchronize()
        wrong = sorted({number for number, flag in self._flags if bool(flag)})
        self._flags.clear()
        self.counts["wrong_batches"] += len(wrong)
        if wrong:
            self.problems.append(f"wrong batches {wrong}")

    def _consume(self, iterator: Iterator[Any]) -> None:
        episode, device, draw = self.episode, self._device, self._draw
        self.counts["passes"] += 1
        stop = episode.batches + 1 if episode.leave == "end" else draw.randrange(episode.batches + 1)
        for number in range(stop):
            if time.monotonic() > self._deadline:
                return
            if number == episode.fork_at:
                self._fork(iterator)
            with device.under(device.second if draw.random() < 0.15 else device.current()):
                try:
                    batch = self._next(iterator)
                except (StopIteration, BrokenError, RuntimeError) as error:
                    self._check_end(number, error)
                    return
                self._use(number, batch)
        if episode.leave == "raise":
            self.counts["consumers_errors"] += 1
            raise BrokenError("the consumer's own")
        self.counts["left"] += stop <= episode.batches

    def _next(self, iterator: Iterator[Any]) -> Any:
        """The next batch, asked for again after each alarm."""
        try:
            with alarm_within_next(self._draw.random() * self.episode.alarm / 1000):
                return next(iterator)
        except AlarmError:
            self.counts["alarms"] += 1
        return self._next(iterator)

    def _fork(self, iterator: Iterator[Any]) -> None:
        """A child asks for a batch, lets go of all that it has inherited, and ends."""
        self.counts["forks"] += 1
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                next(iterator)
            except RuntimeError as error:
                code = "from which this one was forked" not in str(error)
                self._kept.clear()
                del iterator
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1]:
            self.problems.append("a forked child's `next` does not say whose the pass is")

    def _check_end(self, number: int, error: Exception) -> None:
        episode = self.episode
        if episode.alarm and "an interrupt ended this pass" in str(error):
            self.counts["torn"] += 1
            return
        expected = FAULTS.get(episode.fault, StopIteration)
        at = episode.fails_at if episode.fault else episode.yields
        self.counts["faults"] += bool(episode.fault)
        if number != at or not isinstance(error, expected):
            self.problems.append(
                f"the pass ends at batch {number} with {error!r}; expected {expected.__name__} at {at}"
            )
        if self._draw.random() < 0.5:
            self._errors.append(error)

    def _use(self, number: int, batch: Any) -> None:
        device, draw = self._device, self._draw
        parts = tensors_of(batch)
        del batch
        stream = device.current()
        self.counts["batches"] += 1
        device.lag(draw.random() * self.episode.lag)
        self._check(number, parts)
        if draw.random() < 0.1:
            self._lend(number, parts)
        if draw.random() < 0.1:
            parts = [part[1:2] for part in parts]
        if draw.random() < 0.2:
            self.counts["retained"] += 1
            more = 1 if self.episode.static else draw.randrange(1, 12)  # a later batch would lie there
            self._kept.append(Kept(number, number + more, parts, stream))
        del parts
        self._let_go(number)
        if draw.random() < 0.03:
            device.synchronize()

    def _lend(self, number: int, parts: list[torch.Tensor]) -> None:
        """Read the batch on another stream too, as PyTorch asks for it to be done."""
        device = self._device
        self.counts["lent"] += 1
        if device.third is None:
            return self._check(number, parts)
        device.third.wait_stream(device.current())
        with device.under(device.third):
            device.lag(self._draw.random() * self.episode.lag)
            self._check(number, parts)
        for part in parts:
            part.record_stream(device.third)
        if self.episode.static:  # nobody else can tell fastload of that stream
            device.current().wait_stream(device.third)
        return None

    def _let_go(self, number: int | None) -> None:
        """Check the retained batches that are due once more, all of them without a number, and drop them."""
        due = [kept for kept in self._kept if number is None or kept.until <= number]
        self._kept = [kept for kept in self._kept if kept not in due]
        for kept in due:
            with self._device.under(kept.stream):
                self._check(kept.number, kept.parts)

    def _check(self, number: int, parts: list[torch.Tensor]) -> None:
        """Compare on the current stream, without waiting for it."""
        self.counts["checks"] += 1
        expected = leaves(self.episode, number, self._device.device)
        if self.episode.transform in ("add", "in place"):
            expected[0] += SHIFT
        if self.episode.short == "pad":
            expected = padded(expected, self.episode.rows if self.episode.batches > 1 else SHORT)
        if len(parts[0]) == 1:
            expected = [part[1:2] for part in expected]
        wrong = [
            ((part.round() if part.is_floating_point() else part) != right).any()
            for part, right in zip(parts, expected, strict=True)
        ]
        self._flags.append((number, torch.stack(wrong).any()))

    def _transform(self) -> Any:
        episode, device, counter = self.episode, self._device, self._background
        draw = random.Random(episode.seed + 2)

        def transform(images: torch.Tensor) -> torch.Tensor:
            counter.number = number = getattr(counter, "number", -1) + 1
            device.lag(draw.random() * episode.side_lag)
            if episode.fails_at == number and episode.fault == "transform":
                raise BrokenError("transform")
            if episode.fails_at == number and episode.fault == "memory":
                torch.empty(2**55, dtype=torch.uint8, device=device.device)
            if episode.transform == "in place":
                return images.add_(SHIFT)
            return images + SHIFT if episode.transform == "add" else images

        same_numbers = T.Normalize([0.0] * 3, [1 / 255] * 3)
        return {"none": None, "normalize": T.Compose([transform, same_numbers])}.get(episode.transform, transform)


class AlarmError(Exception):
    """Raised by a signal handler."""


@contextmanager
def alarm_within_next(seconds: float) -> Iterator[None]:
    """Have the signal handler raise after so long, if fastload is handing over a batch then; 0: it never does."""
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, _raise_within_next)
    before = signal.setitimer(signal.ITIMER_REAL, seconds)  # pytest-timeout's
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)


def _raise_within_next(_signal: int, frame: FrameType | None) -> None:
    """Between the return of `next` and its caller a batch would be lost, and no iterator could help.

    In an object's own `to`, it would be taken for an error of that.
    """
    callers = set()
    while frame is not None and frame.f_back is not None:
        callers.add(frame.f_code)
        frame = frame.f_back
        if frame.f_code is PrefetchIterator.__next__.__code__ and move_the_rest.__code__ not in callers:
            raise AlarmError


def play_files(seed: int, device: Device) -> tuple[Counter[str], list[str]]:
    """An episode of mutated files among sound ones; what was counted, and what is wrong."""
    draw = random.Random(seed)
    kinds = draw.sample(fuzz_files.kinds(), 3)
    mutants = [file for kind in kinds for file in fuzz_files.mutants(kind, 8, seed)]
    files = draw.sample([*mutants, *[fuzz_files.NEIGHBOUR] * 12], k=36)
    pixels = [fuzz_files.by_pillow(file)[0] for file in files]
    size, on_error = draw.choice([1, 4, 9]), draw.choice(fuzz_files.POLICIES)
    workers = draw.choice([0, 0, 0, 1])
    wrapped = DataLoader(list(enumerate(files)), size, collate_fn=fl.collate, num_workers=workers)
    loader = fl.PrefetchLoader(wrapped, transform=T.DecodeJpeg(on_error), device=device.device)
    wrong, seen = [], []
    try:
        for numbers, images in loader:
            seen += numbers.tolist()
            for number, image in zip(numbers.tolist(), images, strict=True):
                expected = pixels[number]
                is_right = not image.any() if expected is None else image.shape[1:] == expected.shape[:2]
                wrong += [] if is_right else [f"file {number} of {kinds}"]
    except T.BadImageError as error:
        bad = {number % size for number in range(len(seen), len(seen) + size) if pixels[number] is None}
        named = {number for number in range(size) if f"sample {number}: " in str(error)}
        wrong += [] if on_error == "raise" and named == bad else [f"{named} are named, {bad} are bad"]
    else:
        good = [number for number, image in enumerate(pixels) if on_error == "zero" or image is not None]
        wrong += [] if seen == good else [f"files {seen} came, and should {good}"]
    return Counter(files=len(seen), bad_files=sum(image is None for image in pixels)), wrong


@dataclass(eq=False)
class Kept:
    """A batch that the consumer keeps until a later one has come."""

    number: int
    until: int
    parts: list[torch.Tensor]
    stream: Any


FAULTS: dict[str, type[Exception]] = {"loader": BrokenError, "transform": BrokenError, "memory": RuntimeError}


def _loader(episode: Episode, device: Device) -> Any:
    batches = Batches(episode, device.device)
    if episode.source != "workers":
        return batches
    return DataLoader(batches, batch_size=None, num_workers=2, pin_memory=device.is_cuda)


class Soak:
    """Episodes for a given time, and the memory that they take."""

    def __init__(self, device: Device, seconds: float, seed: int) -> None:
        self.device = device
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.probes: list[int] = []  # peaks of reserved memory, bytes
        self.host_bytes: list[dict[str, int]] = []
        self._start = time.monotonic()
        self._seconds = seconds

    def run(self) -> None:
        is_tiny = not self.device.is_cuda
        for transform in ("normalize", "none", "in place"):  # what is made once, such as compiled kernels, is made
            self.play(probe(transform), deadline=time.monotonic() + HANGING)
        for _ in range(3):
            self._probe()
        allocated, report_at = self.device.memory(), REPORT_EVERY
        seed = self.seed
        Image.MAX_IMAGE_PIXELS = fuzz_files.MOST_PIXELS
        while (elapsed := time.monotonic() - self._start) < self._seconds:
            if seed % FILES_EVERY == 0:
                self.play_files(seed)
            else:
                self.play(Episode.drawn(seed, is_tiny=is_tiny))
            if (left := self._left_over(allocated)) > 0:
                self._note(f"seed {seed}: {left} bytes are left on the device")
                allocated += left
            if not gc.isenabled() and (kept := tensors_in_cycles()):
                self._note(f"seed {seed}: {kept} tensors are kept by cycles")
            seed += 1
            if elapsed > report_at:
                report_at += REPORT_EVERY
                self._probe()
                print(self.summary(), flush=True)
        self._probe()
        if max(self.probes[-2:]) > 1.1 * max(self.probes[:3]) + SEGMENT:
            self._note(f"the same episode's peak of memory has grown: {self.probes}")
        allocated_on_host = [each["allocated"] for each in self.host_bytes]
        half = len(allocated_on_host) // 2  # by then what is loaded once, code above all, is loaded
        if half >= SAMPLES and max(allocated_on_host[-2:]) > 1.1 * max(allocated_on_host[:half]):
            self._note(f"the host's memory has grown: {allocated_on_host}")

    def play(self, episode: Episode, deadline: float | None = None) -> None:
        faulthandler.dump_traceback_later(HANGING, exit=True)
        play = Play(episode, self.device, deadline or self._start + self._seconds * 0.98)
        try:
            play.run()
        except Exception as error:  # noqa: BLE001  (one finding more)
            play.problems.append(f"{type(error).__name__}: {error}")
        finally:
            faulthandler.cancel_dump_traceback_later()
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("fastload")]
        for thread in threads:
            thread.join(30)
        if any(thread.is_alive() for thread in threads):
            play.problems.append("a thread is left")
        for problem in play.problems:
            self._note(f"seed {episode.seed}: {problem}\n  {episode}")
        self.counts += play.counts
        self.counts["episodes"] += 1

    def play_files(self, seed: int) -> None:
        faulthandler.dump_traceback_later(HANGING, exit=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            counts, wrong = play_files(seed, self.device)
        faulthandler.cancel_dump_traceback_later()
        self.counts += counts
        for problem in wrong:
            self._note(f"seed {seed}: {problem}")

    def results(self) -> dict[str, Any]:
        return {
            "device": torch.cuda.get_device_name() if self.device.is_cuda else "cpu",
            "torch": torch.__version__,
            "seconds": round(time.monotonic() - self._start, 1),
            "first_seed": self.seed,
            "counts": {name: self.counts[name] for name in COUNTED},
            "problems": self.problems,
            "probe_peak_reserved_bytes": self.probes,
            "host_bytes_at_each_probe": self.host_bytes,
        }

    def summary(self) -> str:
        counts = ", ".join(f"{self.counts[name]} {name.replace('_', ' ')}" for name in COUNTED)
        peaks = f"; peak of the probe {self.probes[0]:,} then {self.probes[-1]:,} bytes" if self.device.is_cuda else ""
        return f"{time.monotonic() - self._start:.0f} s: {counts}, {len(self.problems)} problems{peaks}"

    def _note(self, problem: str) -> None:
        self.problems.append(problem)
        print(f"FOUND: {problem}", flush=True)

    def _left_over(self, allocated: int) -> int:
        left = self.device.memory() - allocated
        if left > 0:
            collect()
            left = self.device.memory() - allocated
        return left

    def _probe(self) -> None:
        """Play one and the same episode from an empty cache, and note its peak."""
        if self.device.is_cuda:
            collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved() if self.device.is_cuda else 0
        self.play(probe("add"), deadline=time.monotonic() + HANGING)
        self.probes.append(torch.cuda.max_memory_reserved() - before if self.device.is_cuda else 0)
        self.host_bytes.append(host_bytes())


COUNTED = (
    *("episodes", "passes", "batches", "checks", "wrong_batches", "retained", "lent", "left", "faults"),
    *("alarms", "torn", "forks", "files", "bad_files"),
)


def probe(transform: str) -> Episode:
    """An episode that is always the same."""
    return Episode(
        seed=0,
        structure="tuple",
        source="pinned",
        transform=transform,
        depth=3,
        batches=40,
        rows=16,
        size=64,
        labels=2,
        passes=1,
        side_lag=0,
        lag=2,
        fault="",
        fails_at=0,
        leave="end",
        static=None,
        alarm=0,
        fork_at=None,
    )


def collect() -> None:
    """Where the cycle collector is off, nothing may need it."""
    if gc.isenabled():
        gc.collect()


def tensors_in_cycles() -> int:
    """How many tensors wait for the cycle collector, where it is off; they are let go of."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    kept = sum(isinstance(each, torch.Tensor) for each in gc.garbage)
    gc.garbage.clear()
    gc.collect()
    return kept


class MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def host_bytes() -> dict[str, int]:
    """What malloc has given out, the memory that the process has, and how much PyTorch has pinned; 0 where none tells.

    The second grows beyond the first as malloc keeps what is in pieces, for each thread that there was.
    """
    collect()
    heap = MallInfo()
    if mallinfo := getattr(ctypes.CDLL(None), "mallinfo2", None):
        mallinfo.restype = MallInfo
        heap = mallinfo()
    path = Path("/proc/self/statm")
    resident = int(path.read_text().split()[1]) * resource.getpagesize() if path.exists() else 0
    pinned = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
    return {"allocated": heap.uordblks + heap.hblkhd, "resident": resident, "pinned": pinned}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long to play")
    parser.add_argument("--seed", type=int, help="play this episode only")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-gc", action="store_true", help="play without the cycle collector")
    parser.add_argument("--json", type=Path, help="where to write the counts")
    arguments = parser.parse_args()
    if arguments.no_gc:
        gc.disable()
        gc.freeze()  # what is imported needs no collection
    device = Device(torch.device(arguments.device))
    first = random.SystemRandom().randrange(2**40) if arguments.seed is None else arguments.seed
    soak = Soak(device, arguments.seconds, first)
    if arguments.seed is None:
        soak.run()
    elif first % FILES_EVERY == 0:
        soak.play_files(first)
    else:
        soak.play(Episode.drawn(first, is_tiny=not device.is_cuda), deadline=time.monotonic() + HANGING)
    print(f"soak on {arguments.device}: {soak.summary()}")
    if arguments.json:
        arguments.json.write_text(json.dumps(soak.results(), indent=1) + "\n")
    return int(bool(soak.problems))


if __name__ == "__main__":
    sys.exit(main())
