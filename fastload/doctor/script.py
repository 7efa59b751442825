"""``run_script``: a training script runs for some steps, and its loaders are watched."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DataLoader

from fastload.arguments import resolved_device
from fastload.loader import PrefetchLoader
from fastload.offload.timm_loader import is_prefetcher
from fastload.report.measured import MeasuredLoader
from fastload.report.watch import WatchedLoader, WatchedPass
from fastload.streams import side_stream

__all__ = ["ScriptError", "ScriptRun", "Seen", "as_main", "run_script"]


class EnoughError(BaseException):
    """Ends the script: enough of its steps were seen. No script catches it by accident."""


class ScriptError(Exception):
    """The user's code failed, by the error that is this one's cause."""


@dataclass(frozen=True)
class Seen:
    """A loader of a script: as it was measured, and as the script has it, maybe in a loader of timm's."""

    measured: MeasuredLoader
    loader: Any


@dataclass(frozen=True)
class ScriptRun:
    """What a script showed: its loaders, the one that gave most batches first.

    ``main`` is the script's module: see :func:`as_main`. ``is_out_of_time`` says that it was ended before it had made
    all steps.
    """

    loaders: list[Seen]
    main: ModuleType
    is_out_of_time: bool


class Watch:
    """Counts the batches of all loaders that a script iterates over, and ends the script in time."""

    def __init__(self, steps: int, seconds: float, advance: Callable[[], None]) -> None:
        self.loaders: dict[int, Seen] = {}
        self.batches: Counter[int] = Counter()
        self._steps = steps
        self._seconds = seconds
        self._advance = advance
        self._begun: float | None = None
        self.is_out_of_time = False
        self._inside = threading.local()

    def watched(self, loader: DataLoader[Any], batches: Iterator[Any]) -> Iterator[Any]:
        """The iterator of a loader, measured; as it is if fastload or a worker of its iterates over it."""
        if getattr(self._inside, "fastload", False) or threading.current_thread().name.startswith("fastload"):
            return batches
        if id(loader) not in self.loaders:
            new = WatchedLoader(loader, resolved_device(None))
            self.loaders[id(loader)] = Seen(new, prefetcher_around(loader) or loader)
            self._listen(new, id(loader))
        clock, side = self.loaders[id(loader)].measured.clock, side_stream(resolved_device(None))
        return WatchedPass(batches, clock.begin_pass(batches, side), side)

    @contextmanager
    def of_fastload(self, loader: PrefetchLoader) -> Iterator[None]:
        """A context in which a ``PrefetchLoader``, which measures itself, begins a pass."""
        if id(loader) not in self.loaders:
            self.loaders[id(loader)] = Seen(loader, loader.loader)
            self._listen(loader, id(loader))
        self._inside.fastload = True
        try:
            yield
        finally:
            self._inside.fastload = False

    def _listen(self, loader: MeasuredLoader, number: int) -> None:
        loader.clock.listeners.append(lambda: self._count(number))

    def _count(self, loader: int) -> None:
        now = time.perf_counter()
        self._begun = now if self._begun is None else self._begun
        self._advance()
        self.batches[loader] += 1
        has_all = self.batches[loader] > self._steps
        self.is_out_of_time = not has_all and now - self._begun > self._seconds
        if has_all or self.is_out_of_time:
            raise EnoughError


def run_script(
    path: Path, arguments: Sequence[str], steps: int, seconds: float, advance: Callable[[], None] = lambda: None
) -> ScriptRun:
    """Run a script as ``python path arguments`` does, until a loader of its has given so many batches.

    ``advance`` is called with each batch.

    Raises:
        ScriptError: the script failed.
        ValueError: it iterated over no ``DataLoader``.
    """
    watch = Watch(steps, seconds, advance)
    begin, begin_prefetching = DataLoader.__iter__, PrefetchLoader.__iter__

    def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
        return watch.watched(loader, begin(loader))

    def iterate_prefetching(loader: PrefetchLoader) -> Iterator[Any]:
        with watch.of_fastload(loader):
            return begin_prefetching(loader)

    main = ModuleType("__main__")
    main.__file__ = str(path)  # workers that are spawned read it
    with (
        as_main(main),
        mock.patch.object(DataLoader, "__iter__", iterate),
        mock.patch.object(PrefetchLoader, "__iter__", iterate_prefetching),
        mock.patch.object(sys, "argv", [str(path), *arguments]),
    ):
        _run_until_enough(path, main)
    if not watch.batches:
        raise ValueError(f"{path} iterated over no DataLoader of PyTorch's, and over no PrefetchLoader")
    return ScriptRun([watch.loaders[number] for number, _ in watch.batches.most_common()], main, watch.is_out_of_time)


def prefetcher_around(loader: DataLoader[Any]) -> Any:
    """The prefetcher of timm's that is about to iterate over a loader; None if there is none."""
    frame = inspect.currentframe()
    while frame is not None:
        caller: Any = frame.f_locals.get("self")
        if is_prefetcher(caller) and caller.loader is loader:
            return caller
        frame = frame.f_back
    return None


@contextmanager
def as_main(module: ModuleType | None) -> Iterator[None]:
    """A context in which a script's ``module`` is the main one, and modules are imported from its folder, too.

    Spawned workers need both: pickle looks the script's classes up in the main module. None changes nothing.
    """
    if module is None:
        yield
        return
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        with mock.patch.object(sys, "path", [str(Path(str(module.__file__)).parent), *sys.path]):
            yield
    finally:
        sys.modules["__main__"] = before


def _run_until_enough(path: Path, main: ModuleType) -> None:
    try:
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(main))
    except EnoughError as enough:
        enough.__traceback__ = None  # its frames keep the model
    except SystemExit as end:
        if end.code not in (None, 0):
            how = f"by sys.exit({end.code!r})" if isinstance(end.code, str) else f"with exit code {end.code}"
            raise ScriptError(f"{path} ended {how}") from end
    except Exception as error:
        raise ScriptError(f"{path} failed") from error
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
