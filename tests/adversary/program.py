"""Programs that use a prefetching loader on the simulated device, and what must be true of each."""

from __future__ import annotations

import dataclasses
import gc
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any
from unittest import mock

import torch

import fastload as fl
from fastload import loader, streams
from fastload.prefetch import channel, item, iterator, preparer, slots, stage, static
from fastload.structure import loaded_types
from fastload.structure.tree import map_movable
from fastload.transfer import packing, pinned, transfer
from tests.adversary.device import DEVICE, Device, DeviceTensor, Point, Stream
from tests.adversary.schedule import Abandoned, Host, Schedule, Threading, one_core

Wrap = Callable[..., Any]

SHIFT = 100  # what a transform adds to the images

# A `for` loop holds its batch, and when it asks for the next the one before: fastload has places for so many.
IN_HAND = 2


class Finding(AssertionError):  # noqa: N818  (the code under test has errors; the adversary has findings)
    """Something is not as promised."""


class BrokenError(Exception):
    """What a loader, a transform or the device fails with."""


class Choices:
    """Numbers drawn from bytes; 0 when they have run out."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    def below(self, limit: int) -> int:
        return next(self._bytes, 0) % limit

    def of(self, *options: Any) -> Any:
        return options[self.below(len(options))]


class Whole:
    """A container that moves as one, as ``TensorDict`` does."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = tensors

    def to(self, device: torch.device) -> Whole:
        return Whole(*(tensor.to(device, non_blocking=True) for tensor in self.tensors))

    def record_stream(self, stream: Any) -> None:
        for tensor in self.tensors:
            tensor.record_stream(stream)


class Own:
    """An object that knows how to move, and whose memory nobody can be told of."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def to(self, device: torch.device) -> Own:
        return Own(self.tensor.to(device, non_blocking=True))


STRUCTURES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "tensor": lambda images, _: images,
    "pair": lambda images, labels: (images, labels),
    "dict": lambda images, labels: {"images": images, "more": [labels, "name"]},
    "whole": Whole,
    "whole and tensor": lambda images, labels: [Whole(images), labels],
    "own": lambda images, labels: (images, Own(labels)),
}
PLAIN = ("tensor", "pair", "dict")  # in which there is nothing but tensors

# Bytes from which a tensor has a block of its own: with 2 samples or more, none has, or the images, or all.
SMALL = (packing.SMALL, 32, 1)

STATIC = (None, fl.Static(), fl.Static("drop"), fl.Static("pad"))


def tensors_of(batch: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def note(leaf: Any, _: object) -> Any:
        found.extend(getattr(leaf, "tensors", None) or [getattr(leaf, "tensor", leaf)])
        return leaf

    map_movable(note, batch)
    return found


def add(images: torch.Tensor) -> torch.Tensor:
    return images + SHIFT


def add_twice(images: torch.Tensor) -> torch.Tensor:
    return (images + 60) + (SHIFT - 60)


def add_in_place(images: torch.Tensor) -> torch.Tensor:
    return images.add_(SHIFT)


@dataclass(frozen=True)
class Habit:
    """What becomes of one batch: it is read after ``kept`` more have come; not at all, if that is None."""

    kept: int | None = 0
    part: bool = False  # only a view of it is kept
    lent: bool = False  # it is read on another stream, which waits, and of which the allocator is told
    on_second: bool = False  # it is received and read under another stream than the batch before
    rest: bool = False  # then the consumer waits for the device

    @staticmethod
    def drawn(choices: Choices) -> Habit:
        return Habit(
            kept=choices.of(0, 0, 0, 0, 0, 0, None, 1, 2, 3),
            part=choices.below(8) == 1,
            lent=choices.below(6) == 1,
            on_second=choices.below(12) == 1,
            rest=choices.below(16) == 1,
        )


@dataclass(frozen=True)
class PassPlan:
    """One pass: so many batches are asked for, each with its habit, and then it is left in some way."""

    habits: tuple[Habit, ...]
    leave: str
    fault: str
    fails_at: int

    @staticmethod
    def drawn(choices: Choices, batches: int, faults: list[str]) -> PassPlan:
        leave = choices.of("end", "end", "drop", "close", "raise", "open")
        asked = batches + 1 if leave == "end" else choices.below(batches + 1)
        return PassPlan(
            habits=tuple(Habit.drawn(choices) for _ in range(asked)),
            leave=leave,
            fault=choices.of("", "", "", "", *faults),
            fails_at=choices.below(batches) if batches else 1,
        )


@dataclass(frozen=True)
class Program:
    depth: int
    batches: int
    structure: str
    source: str
    small: int
    rows: str
    static: fl.Static | None
    transform: Callable[[torch.Tensor], torch.Tensor] | None
    passes: tuple[PassPlan, ...]
    restless: int
    timeouts: bool
    preempted: bool

    @staticmethod
    def drawn(data: bytes) -> Program:
        choices = Choices(data)
        depth = 1 + choices.below(3)
        batches = choices.of(6, 4, 5, 3, 7, 2, 1, 0)
        structure = choices.of(*STRUCTURES)
        source = choices.of("pageable", "pinned", "reused", "device")
        transforms = [None, add, add_twice, add_in_place]
        if "whole" in structure:  # no images
            transforms = [None]
        elif source == "device":  # it would write to the data set
            transforms.remove(add_in_place)
        transform = choices.of(*transforms)
        fixed = choices.of(*STATIC, None, None) if structure in PLAIN else None
        if fixed is not None:
            fixed = dataclasses.replace(fixed, poison=bool(choices.below(2)))
        faults = ["loader", "transform"] if transform else ["loader"]
        if source != "device":  # there nothing is allocated to begin with
            faults.append("memory")
        return Program(
            depth=depth,
            batches=batches,
            structure=structure,
            source=source,
            small=choices.of(*SMALL),
            rows=choices.of("even", "short") if fixed else choices.of("even", "short", "uneven"),
            static=fixed,
            transform=transform,
            restless=choices.of(128, 32, 8, 240),
            timeouts=choices.below(8) == 1,
            preempted=choices.below(8) == 1,
            passes=tuple(PassPlan.drawn(choices, batches, faults) for _ in range(choices.of(1, 1, 2, 3))),
        )

    def samples(self, number: int) -> int:
        if self.rows == "uneven":
            return 2 + number % 4
        return 1 if self.is_short(number) else 2

    def is_short(self, number: int) -> bool:
        """Whether this is a batch with fewer samples than the first."""
        return self.rows == "short" and number == self.batches - 1 > 0

    @property
    def yields(self) -> int:
        """How many batches come to the consumer."""
        drops = self.static is not None and self.static.short == "drop" and self.is_short(self.batches - 1)
        return self.batches - drops

    @property
    def leaves(self) -> int:
        return 1 if self.structure == "tensor" else 2

    def values(self, number: int, *, is_part: bool) -> list[list[int]]:
        """What the tensors of a batch hold."""
        image = number + (SHIFT if self.transform else 0)
        found = [[image], [number]][: self.leaves]
        if self.static is None or self.static.short != "pad":
            return found
        zeros = [0] if self.is_short(number) and not is_part else []
        return [sorted({*zeros, *values}) for values in (*found, [1])]


SHAPES = ((1, 4, 4), (2,))  # of an image and its label
DTYPES = (torch.uint8, torch.int16)
MOST_SAMPLES = 5


class NumberedLoader:
    """Batches of images and labels filled with their number, from one kind of memory."""

    def __init__(self, program: Program, device: Device) -> None:
        self.program = program
        self.plan = program.passes[0]
        self.data: list[list[Any]] = []
        self.at: dict[Host, tuple[PassPlan, int]] = {}  # what each thread has been given last
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        if self.program.source == "device":  # computed on the consumer's stream
            self.data.append([self._filled(number, device=DEVICE) for number in range(self.program.batches)])
        return self._batches(self.plan, self.data[-1] if self.data else [])

    def fails(self, fault: str) -> bool:
        """Whether the running thread's batch is the one to which this happens."""
        plan, number = self.at[self._device.schedule.running]
        return plan.fault == fault and plan.fails_at == number

    def _batches(self, plan: PassPlan, data: list[Any]) -> Iterator[Any]:
        schedule = self._device.schedule
        reused = _pinned(_filled(0, MOST_SAMPLES)) if self.program.source == "reused" else ()
        for number in range(self.program.batches):
            schedule.pause()
            self.at[schedule.running] = plan, number
            if self.fails("loader"):
                raise BrokenError(number)
            batch = self._tensors(number, data, reused)
            if self.fails("memory"):
                self._device.is_full_for.add(schedule.running)
            yield STRUCTURES[self.program.structure](*batch)
        schedule.pause()

    def _tensors(self, number: int, data: list[Any], reused: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        if data:
            return data[number]
        if reused:
            images, labels = (buffer[: self.program.samples(number)].fill_(number) for buffer in reused)
            # An `Own` is moved by the consumer, when the buffer may be in use again.
            return images, self._filled(number)[1] if self.program.structure == "own" else labels
        return _pinned(self._filled(number)) if self.program.source == "pinned" else self._filled(number)

    def _filled(self, number: int, device: torch.device | str = "cpu") -> tuple[torch.Tensor, ...]:
        return _filled(number, self.program.samples(number), device)


def _filled(number: int, samples: int, device: torch.device | str = "cpu") -> tuple[torch.Tensor, ...]:
    return tuple(
        torch.full((samples, *shape), number, dtype=dtype, device=device)
        for shape, dtype in zip(SHAPES, DTYPES, strict=True)
    )


def _pinned(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.pin_memory() for tensor in tensors)


@dataclass
class Reading:
    """A kernel that reads a batch when it runs."""

    number: int
    expected: list[list[int]]
    found: list[list[int]] | None = None


@dataclass(eq=False)
class Kept:
    """A batch that the consumer reads on a stream after a later one has come."""

    number: int
    until: int
    batch: Any
    stream: Stream
    is_part: bool

    @property
    def is_beyond_hand(self) -> bool:
        """Whether fastload cannot expect it to be let go of by then."""
        return self.until - self.number >= IN_HAND


class Consumer:
    """Plays a program against a loader, and raises a `Finding` where something is not as it should be."""

    def __init__(self, program: Program, device: Device, wrap: Wrap) -> None:
        self.program = program
        self.device = device
        self.second, self.third = device.Stream(), device.Stream()
        self.source = NumberedLoader(program, device)
        options = {"static": program.static} if program.static else {}  # the classic prefetcher knows of no such thing
        self.loader = wrap(self.source, transform=self._transform(), depth=program.depth, **options)
        self.readings: list[Reading] = []
        self.errors: list[BaseException] = []
        self._kept: list[Kept] = []
        self._in_use: list[Point] = []  # until each is passed, a batch is in use that was kept beyond the hand
        self._open: list[Iterator[Any]] = []
        self._begun = 0  # passes
        self._left_open = 0  # how many passes there have been in it
        self._batch: Any = None  # as a loop's variable it outlives the loop

    def play(self) -> None:
        for plan in self.program.passes:
            self.source.plan = plan
            self._one_pass(plan)
        self._batch = None
        self._open.clear()
        self._close()

    def let_go(self) -> None:
        """Keep nothing of the loader, its data and the errors."""
        self.loader = None
        self.source.data.clear()
        self.errors.clear()

    def _one_pass(self, plan: PassPlan) -> None:
        self._begun += 1
        iterator = iter(self.loader)
        try:
            for number, habit in enumerate(plan.habits):
                stream = self.second if habit.on_second else self.device.current_stream()
                with self.device.stream(stream):
                    try:
                        self._batch = next(iterator)
                    except (StopIteration, BrokenError, torch.OutOfMemoryError) as error:
                        self._check_end(plan, number, error)
                        break
                    self._use(number, habit, self._batch)
            self._leave(plan)
        except BrokenError as error:
            self.errors.append(error)
        if plan.leave == "close":
            self._close()
        if plan.leave in ("close", "end") and next(iterator, None) is not None:
            raise Finding("a batch comes after the end of the pass")
        if plan.leave == "open":
            self._open.append(iterator)
            self._left_open += 1
        del iterator
        self._let_go()

    def _leave(self, plan: PassPlan) -> None:
        if plan.leave == "raise":
            raise BrokenError("the consumer's own")

    def _close(self) -> None:
        close = getattr(self.loader, "close", None)
        if close is not None:
            close()

    def _check_end(self, plan: PassPlan, number: int, error: Exception) -> None:
        """The pass may end here only if the loader ends here, or fails here as planned."""
        is_error = not isinstance(error, StopIteration)
        fails = bool(plan.fault) and plan.fails_at < self.program.batches
        if (number, is_error) != (plan.fails_at if fails else self.program.yields, fails):
            raise Finding(f"the pass ends at batch {number} with {error!r}") from error
        if is_error:
            self.errors.append(error)

    def _use(self, number: int, habit: Habit, batch: Any) -> None:
        stream = self.device.current_stream()
        if habit.lent:
            self.third.wait_stream(stream)
            for tensor in tensors_of(batch):
                tensor.record_stream(self.third)
            self._read(number, batch, self.third)
            if self.program.static:  # nobody else can tell fastload of that stream
                stream.wait_stream(self.third)
        if habit.part:
            batch = tuple(tensor[:1] for tensor in tensors_of(batch))
        if habit.kept is not None:
            # At a fixed address it is whole until the next but one is asked for.
            kept = min(habit.kept, IN_HAND - 1) if self.program.static else habit.kept
            self._kept.append(Kept(number, number + kept, batch, stream, habit.part))
        del batch
        self._let_go(number)
        if habit.rest:
            self.device.consumer_may_wait = True
            self.device.synchronize()
            self.device.consumer_may_wait = False

    def _let_go(self, number: int | None = None) -> None:
        """Read what is due and let go of it; all, without a number."""
        due = [each for each in self._kept if number is None or each.until <= number]
        while due:
            kept = due.pop(0)
            self._read(kept.number, kept.batch, kept.stream, is_part=kept.is_part)
            self._kept.remove(kept)
            kept.batch = None
            if kept.is_beyond_hand:
                self._in_use.append(kept.stream.point())

    def _read(self, number: int, batch: Any, stream: Stream, *, is_part: bool = False) -> None:
        cells = [tensor.cells for tensor in tensors_of(batch)]
        del batch
        reading = Reading(number, self.program.values(number, is_part=is_part))
        self.readings.append(reading)

        def read() -> None:
            reading.found = [sorted(set(part.flatten().tolist())) for part in cells]

        self.device.schedule.pause()
        stream.do(read)

    def _transform(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        function, source = self.program.transform, self.source
        if function is None:
            return None

        def transform(images: torch.Tensor) -> torch.Tensor:
            if source.fails("transform"):
                raise BrokenError("transform")
            return function(images)

        return transform

    def check_memory(self) -> None:
        """No more than `depth + 2` batches are on the side stream, and what the program itself holds."""
        schedule, device = self.device.schedule, self.device
        if schedule.running is schedule.consumer or schedule.has_timed_out:
            return
        side = device.current_stream()
        # What the program has told the allocator of itself is the program's own.
        taken = sum(block.stream is side and self.third not in block.users for block in device.memory.taken())
        self._in_use = [point for point in self._in_use if not point.is_passed]
        passes = 1 + self._left_open  # each with places, and a thread that prepares a batch
        most = Blocks(self.program).most(
            places=passes * (self.program.depth + IN_HAND),
            passes=passes,
            begun=self._begun,
            kept=sum(kept.is_beyond_hand for kept in self._kept) + len(self._in_use),
            failed=len(self.errors),  # an error's traceback keeps the batch that was being prepared
        )
        if taken > most:
            device.faults.append(f"{taken} blocks are taken on the side stream, and {most} may be")

    def check(self) -> None:
        """What must be true when all is done."""
        for reading in self.readings:
            if reading.found != reading.expected:
                raise Finding(f"batch {reading.number} holds {reading.found}; expected {reading.expected}")
        if self.device.faults:
            raise Finding(self.device.faults[0])


class Blocks:
    """How many blocks of the side stream a program's batches have."""

    def __init__(self, program: Program) -> None:
        self._program = program
        sent = program.leaves
        if program.source == "device":
            sent = 0  # they are there already, in blocks of the consumer's stream
        elif program.structure == "own":
            sent = 1  # the other is moved on the consumer's stream
        elif program.structure in PLAIN and program.small == SMALL[0] and program.source == "pageable":
            sent = 1  # all are packed together; a few that are pinned are not
        made = MADE[program.transform]
        beside_images = min(sent, program.leaves - 1) if program.structure != "own" else 0
        self.ready = beside_images + 1 if made else sent  # of one that waits, or is in the consumer's hand
        self.prepared = max(self.ready, sent + made)  # of one that is copied and transformed, at most

    def most(self, *, places: int, passes: int, begun: int, kept: int, failed: int) -> int:
        """With so many places, threads that prepare, passes so far, batches kept beyond their places, and errors."""
        static = self._program.static
        if static is None:
            return (places + kept) * self.ready + passes * (self.prepared - self.ready) + failed * self.prepared
        has_mask = static.short == "pad"
        comes_by_itself = static.short == "dynamic" and self._program.rows == "short"
        slots = places * (self._program.leaves + has_mask)
        short = max(0, begun - passes) if comes_by_itself else 0  # the last of a pass; nothing is prepared beside it
        return slots + (passes + failed) * (self.prepared + has_mask) + short * self.ready


MADE = {None: 0, add: 1, add_twice: 2, add_in_place: 0}  # blocks that a transform takes


def play(program: Program, choices: bytes, wrap: Wrap = fl.PrefetchLoader) -> Schedule:
    """Play a program under a schedule; raises a `Finding`."""
    files = PREEMPTED if program.preempted else ()
    schedule = Schedule(choices, restless=program.restless, timeouts=program.timeouts, files=files)
    device = Device(schedule)
    schedule.surroundings = device.work
    with one_core(), simulated(device, program.small), schedule, device.work():
        consumer = Consumer(program, device, wrap)
        device.on_allocation = consumer.check_memory
        try:
            consumer.play()
            schedule.finish()
            consumer.let_go()
            schedule.finish()
            consumer.check()
            _check_that_all_is_free(device)
        except Abandoned:
            raise Finding(schedule.stuck) from None
    return schedule


def _check_that_all_is_free(device: Device) -> None:
    if device.memory.taken():  # by a cycle, or until a stream has passed the point at which it was let go of
        gc.collect()
        device.schedule.finish()
    if taken := device.memory.taken():
        raise Finding(f"{len(taken)} blocks are taken when all is done")


MODULES = (packing, channel, item, stage, loader, iterator, preparer, pinned, slots, static, streams, transfer)
PREEMPTED = [module.__file__ for module in MODULES]


@contextmanager
def simulated(device: Device, small: int) -> Iterator[None]:
    """Give PyTorch the device, fastload's background threads its schedule, and no garbage collection at odd times."""
    threading = Threading(device.schedule)
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        with (
            mock.patch.object(torch, "get_device_module", _answering(device)),
            mock.patch.object(torch.accelerator, "current_accelerator", _answering(DEVICE)),
            mock.patch.object(torch.accelerator, "current_device_index", _answering(DEVICE.index)),
            mock.patch.object(torch.accelerator, "is_available", _answering(True)),
            mock.patch.object(streams, "_spare", defaultdict(SimpleQueue)),  # a stream is of one simulation,
            mock.patch.object(streams, "_spare_events", defaultdict(deque)),  # and so is an event
            mock.patch.object(streams, "_ours", set()),
            mock.patch.object(packing, "_tensor_over", torch.Tensor.as_strided),
            mock.patch.object(packing, "SMALL", small),
            mock.patch.object(pinned.StagingPool, "LEAST", 1),
            mock.patch.object(
                transfer, "is_plain", lambda value: isinstance(value, DeviceTensor) or loaded_types.is_plain(value)
            ),
            mock.patch.object(iterator, "threading", threading),
            mock.patch.object(iterator, "Flag", threading.Flag),
            mock.patch.object(channel, "SimpleQueue", threading.SimpleQueue),
            mock.patch.object(slots, "SimpleQueue", threading.SimpleQueue),
            mock.patch.object(iterator.PrefetchIterator, "__hash__", lambda one_pass: hash(one_pass.thread)),
        ):
            yield
    finally:
        vars(device).clear()  # it and its streams keep each other: nothing is to be left for the collector
        if was_collecting:
            gc.enable()


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer
