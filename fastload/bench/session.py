"""``Session``: one run of a suite. It measures case by case, saves after each, and shows a table at the end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich
import rich.table
import torch
from rich.console import Console
from rich.progress import Progress

from fastload.bench.harness import peers
from fastload.bench.harness.bars import draw_bars
from fastload.bench.harness.meta import describe, device_slug
from fastload.bench.harness.plan import Plan
from fastload.bench.harness.result import Result
from fastload.bench.harness.row import Row
from fastload.bench.harness.suite import Suite
from fastload.bench.harness.table import layout
from fastload.bench.suites import accuracy, ddp, jpeg, kernels, ladder, oneline, resident, step, transfer, views
from fastload.environment import cores

__all__ = ["SUITES", "Session", "draw", "prepare"]

_ALL: tuple[Suite[Any], ...] = (
    kernels.SUITE,
    resident.SUITE,
    jpeg.SUITE,
    ladder.SUITE,
    accuracy.SUITE,
    transfer.SUITE,
    step.SUITE,
    ddp.SUITE,
    views.SUITE,
    oneline.SUITE,
)
SUITES = {suite.name: suite for suite in _ALL}
RESULTS = Path("fastload-results")  # not over the figures of a checkout
CPU_RUNS = 2


@dataclass(frozen=True)
class Session:
    """What will be measured, on which device, and the file to write; made by :func:`prepare`."""

    suite: Suite[Any]
    cases: Sequence[str]
    subjects: Sequence[str]
    missing: Mapping[str, str]  # subject -> the package that is not installed
    lacking: Mapping[str, str]  # case -> how many devices it needs and how many there are
    variants: Sequence[str]
    runs: int
    device: torch.device
    meta: Mapping[str, Any]
    path: Path
    earlier: Result | None  # what the file holds already

    def run(self, console: Console | None = None) -> Path:
        """Measure, write the file after each case, show a table on ``console``, and return the file's path.

        Raises ``WrongValuesError`` if a subject delivers wrong values; the file has no figures of that case then.
        """
        console = console or rich.get_console()
        if self.device.type == "cpu":
            console.print("No GPU here: everything runs at a tiny size on the CPU, and the figures mean nothing.")
        for subject, package in self.missing.items():
            console.print(f"{subject} is missing: {package} is not installed, so it is not measured.")
        for devices in self.lacking.values():
            console.print(f"{devices}: it is left out.")
        result = self._kept(console)
        for case in self.cases:
            result = self._write(self._measure(case, result, console), result)
            console.print(f"{case} took {result.meta['wall_s'][case]:.0f} s")
        _show(result, self.path, console)
        return self.path

    def _kept(self, console: Console) -> Result:
        """Return the earlier file if its rows can be compared with the new ones, else an empty result."""
        new = Result(self.suite.name, {**self.meta}, [])
        if self.earlier is None or new.same_run(self.earlier):
            return self.earlier or new
        console.print(f"{self.path} is of another commit, machine, version or setting, and will be replaced.")
        return new

    def _measure(self, case: str, before: Result, console: Console) -> Result:
        torch.compiler.reset()  # a model met at another size before would be compiled for any size, and be slower
        start = time.perf_counter()

        def result(rows: Sequence[Row]) -> Result:
            wall_s = {case: round(time.perf_counter() - start, 1)}
            return Result(self.suite.name, {**self.meta, "wall_s": wall_s}, list(rows))

        def save(rows: Sequence[Row]) -> None:
            self._write(result(rows), before)

        size = self.suite.cases[case].on(self.device)
        with Progress(console=console, auto_refresh=False, transient=True, disable=not console.is_terminal) as bar:
            plan = Plan(case, size, self.subjects, self.runs, self.device, self.variants, bar, save)
            return result(self.suite.measure(plan))

    def _write(self, new: Result, before: Result) -> Result:
        result = new.merged_into(before)
        result.sort(list(self.suite.cases), self.suite.subjects)
        result.write(self.path)
        return result


def prepare(
    suite: str | Suite[Any],
    *,
    cases: Sequence[str] = (),
    subjects: Sequence[str] = (),
    variants: Sequence[str] = (),
    runs: int | None = None,
    out: str | Path = RESULTS,
) -> Session:
    """Choose what to measure of a suite: on the GPU, or at a tiny size on the CPU if there is none.

    >>> prepare("resident", cases=["resnet18_b512"], subjects=["timm", "fastload"]).run()  # doctest: +SKIP
    PosixPath('fastload-results/resident--nvidia-h200.json')

    If the result file is of the same commit, device, versions and settings, the new rows replace their like in it
    and the others stay. Any other file is replaced as a whole.

    Args:
        suite: a name in ``SUITES``, or a suite of your own.
        cases: names of cases, which are measured in this order; if empty, all for which there are enough devices.
        subjects: names of subjects; if empty, all. The one that ratios are to is always measured.
        variants: names of the training step's variants, for ``jpeg`` and ``ddp``; if empty, all but ``cpp``, which
            takes minutes to compile. On the CPU there is the first alone.
        runs: how often each subject is measured, at least 1; the suite's own number if None, 2 on the CPU.
        out: the folder of the result file, created if needed.

    Raises:
        ValueError: there is no such suite, case, subject or variant; a case needs more GPUs (without a GPU, more
            cores) than there are; ``runs`` is below 1; or the file to be written exists and is not a result file.

    """
    if isinstance(suite, str):
        suite = SUITES[_known("suite", [suite], SUITES)[0]]
    if runs is not None and runs < 1:
        raise ValueError(f"runs must be at least 1, how often each subject is measured; got {runs}")
    chosen = {suite.baseline, *_known("subject", subjects, suite.subjects)}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    usual, more = (suite.variants, suite.more_variants) if device.type == "cuda" else (suite.variants[:1], ())
    versions = peers.versions(suite.packages.values())
    missing = {name: package for name, package in suite.packages.items() if package not in versions}
    chosen_cases = _known("case", cases, suite.cases)
    lacking = _lacking(suite, chosen_cases, device)
    if cases and lacking:
        raise ValueError(f"{'; '.join(lacking.values())}: choose other cases")
    meta = describe(device, versions, list(missing), suite.settings(device))
    Path(out).mkdir(parents=True, exist_ok=True)
    path = Path(out) / f"{suite.name}--{device_slug(meta['device'])}.json"
    return Session(
        suite=suite,
        cases=[case for case in chosen_cases if case not in lacking],
        subjects=[name for name in suite.subjects if name in chosen and name not in missing],
        missing=missing,
        lacking=lacking,
        variants=_known("variant", variants or usual, (*usual, *more)),
        runs=runs or (suite.runs if device.type == "cuda" else CPU_RUNS),
        device=device,
        meta=meta,
        path=path,
        earlier=Result.read(path) if path.exists() else None,
    )


def _lacking(suite: Suite[Any], cases: Sequence[str], device: torch.device) -> dict[str, str]:
    """Return the cases for which there are too few devices, each with the message to show."""
    there, kind = (torch.cuda.device_count(), "GPUs") if device.type == "cuda" else (cores(), "cores")
    needed = {case: suite.ranks.get(case, 1) for case in cases}
    return {
        case: f"{case} needs {ranks} {kind}, and there are {there}" for case, ranks in needed.items() if ranks > there
    }


def _known(what: str, chosen: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the chosen names, each once; all if none is chosen."""
    chosen, known = list(dict.fromkeys(chosen)), list(known)
    for name in chosen:
        if name not in known:
            raise ValueError(f"there is no {what} {name!r}; choose from {', '.join(known) or 'none'}")
    return chosen or known


def draw(path: Path) -> list[Path]:
    """Draw a result file as two pictures beside it, for light and dark pages; none if nothing can be compared.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    result = Result.read(path)
    pictures = {path.with_suffix(".png"): False, path.with_name(f"{path.stem}-dark.png"): True}
    return [picture for picture, dark in pictures.items() if draw_bars(result, picture, dark=dark)]


def _show(result: Result, path: Path, console: Console) -> None:
    content = layout(result)
    table = rich.table.Table(title=path.stem)
    for number, heading in enumerate(content.headings):
        table.add_column(heading, justify="left" if number < content.names else "right")
    for line in content.lines:
        table.add_row(*line)
    console.print(table, f"Written to {path}")
