"""``find``: the loader that a target names: a script, ``module:factory``, or a folder of images."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastload.doctor.folder import FolderOfImages
from fastload.doctor.script import ScriptError, run_script
from fastload.environment import MEASURES, cores
from fastload.report.measured import MeasuredLoader
from fastload.report.watch import watch

__all__ = ["ExaminedLoader", "find"]

SIZE, BATCH = 224, 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class NoTargetError(ValueError):
    """There is no such target."""


@dataclass(frozen=True)
class ExaminedLoader:
    """What is examined.

    ``measured`` is the loader as a training loop used it, None if none ran; ``loader`` the one to take apart; ``name``
    how the user calls it; ``others`` how many more loaders the script used; ``seconds`` after how many the loop was
    ended before it had made all steps, None if it was not; ``main`` the script's module, None if it is no script.
    """

    name: str
    loader: Iterable[Any]
    measured: MeasuredLoader | None = None
    others: int = 0
    seconds: float | None = None
    main: ModuleType | None = None


def find(
    target: str, arguments: Sequence[str], steps: int, seconds: float, advance: Callable[[], None] = lambda: None
) -> ExaminedLoader:
    """Find a target's loader; where there is a training loop, run it for so many steps.

    Raises:
        ScriptError: it failed.
        ValueError: there is no such target, or it has no loader.
    """
    if not MEASURES:
        raise ValueError("the doctor measures, and FASTLOAD_CLOCK is off: unset it")
    path = Path(target)
    if path.is_dir():
        return ExaminedLoader(target, of_folder(path))
    if path.suffix == ".py":
        if not path.is_file():
            raise ValueError(f"TARGET must be a script that is there, module:factory, or a folder; got {target!r}")
        run = run_script(path, arguments, steps, seconds, advance)
        first, *others = run.loaders
        cut = seconds if run.is_out_of_time else None
        return ExaminedLoader(target, first.loader, first.measured, len(others), cut, run.main)
    if ":" in target:
        return of_factory(target, steps, seconds, advance)
    raise ValueError(f"TARGET must be a script (train.py), module:factory, or a folder of images; got {target!r}")


def of_folder(path: Path) -> DataLoader[Any]:
    """The usual loader of a folder of images, as torchvision's references train on it."""
    from torchvision.transforms import v2  # noqa: PLC0415

    augment = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    dataset = FolderOfImages(path, augment)
    return DataLoader(dataset, min(BATCH, len(dataset)), shuffle=True, num_workers=cores(), drop_last=True)


def of_factory(target: str, steps: int, seconds: float, advance: Callable[[], None]) -> ExaminedLoader:
    """What ``module:factory`` returns: a loader, or a loader and a function that trains on a batch."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory = _named(target)
        made = factory()
        loader, train = _loader_and_step(made)
        measured, is_out_of_time = (None, False) if train is None else trained(loader, train, steps, seconds, advance)
    except NoTargetError:
        raise
    except Exception as error:
        raise ScriptError(f"{target} failed") from error
    finally:
        sys.path.pop(0)
    return ExaminedLoader(target, loader, measured, seconds=seconds if is_out_of_time else None)


def _loader_and_step(made: Any) -> tuple[Iterable[Any], Callable[[Any], object] | None]:
    if not isinstance(made, tuple):
        return made, None
    if len(made) == 2 and callable(made[1]):  # noqa: PLR2004
        return made
    held = ", ".join(type(each).__name__ for each in made)
    raise TypeError(f"a factory must return a loader, or a loader and a function of a batch; got a tuple of {held}")


def _named(target: str) -> Any:
    """The factory that ``module:factory`` names."""
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:  # the last of an empty name
        raise NoTargetError(f"{target} cannot be called: {error}") from error


def trained(
    loader: Iterable[Any], train: Callable[[Any], object], steps: int, seconds: float, advance: Callable[[], None]
) -> tuple[MeasuredLoader, bool]:
    """The loader after a loop of so many steps, and whether so many seconds after the first batch ended it before."""
    measured = loader if isinstance(loader, MeasuredLoader) else watch(loader)
    batches = chain.from_iterable(measured for _ in range(steps))  # epochs, as many as it takes
    if (first := next(batches, None)) is None:
        raise NoTargetError("the loader has no batch to train on")
    train(first)
    end = time.perf_counter() + seconds
    for made, batch in enumerate(islice(batches, steps), 1):
        train(batch)
        advance()
        if time.perf_counter() > end:
            return measured, made < steps
    return measured, False
