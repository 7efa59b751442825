"""What prefetch depth and what tail of batch times do many data-parallel ranks need? A simulation of recorded times.

    python benchmarks/many_ranks.py one.json                  print the tables, in two minutes
    python benchmarks/many_ranks.py one.json --plot many.png  draw the shares as well
    python benchmarks/many_ranks.py one.json --page docs/notes/many-ranks.md    write the tables into the page
    python benchmarks/many_ranks.py one.json --measured two.json    compare with a run on several GPUs

benchmarks/record_batches.py makes the records. The model, of batch k and step k of each rank:

1. A stage of the loader takes the batch when it has handed the one before on: read and pin, decode, prepare.
2. The last stage also waits for a slot, which is free once step k - depth - 1 is over on the device.
3. The step begins when the batch is ready and step k - 1 of all ranks is over. The slowest rank ends it for all.

Each rank replays blocks of the record, from places of its own. So what one rank has in a row stays together, and ranks
are independent of each other.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import typer
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

Array: TypeAlias = NDArray[np.float64]

RANKS = (1, 2, 8, 64, 512, 8192)
DEPTHS = (1, 2, 4, 8)
BLOCK = 50  # batches of the record that a rank replays in a row
STEPS, WARM_UP = 1000, 50  # simulated, and left out of all figures: queues fill
FEWEST_RANKS = 1024  # simulated at once: small worlds are repeated, so that rare stalls are met
HOST = 8  # ranks on one host
LOSS = 0.01  # of the speed, which is accepted
RARE = 1000  # a stall comes once in so many batches
HALVINGS = 8  # of the interval in which the longest stall is
MOST_DEPTH = 128
WIDTH = 120  # of what is printed, in characters
BEGIN, END = "<!-- many_ranks -->", "<!-- end -->"  # in the page, around the tables

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Record:
    """Recorded seconds.

    Attributes:
        loader: (stages, batches), what each stage of the loader needed for each batch.
        steps: (batches,), each training step beside the loader, without its wait for the batch.
        limit: steps on a batch that was kept on the device.
        depth: how many batches could wait for training.
        ranks: how many trained.
        share: the measured share of the limit; NaN if there is none.
        unwaited: the measured share of the time in which the device did not wait for a batch; NaN if there is none.
        name: the device, the model and the commit.
    """

    loader: Array
    steps: Array
    limit: Array
    depth: int = 2
    ranks: int = 1
    share: float = math.nan
    unwaited: float = math.nan
    name: str = ""

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read what record_batches.py wrote."""
        content = json.loads(path.read_text())
        try:
            batches, limit = content["batches"], content["limit_steps"]
            loader = np.array([stages_of(batch["host"], batch["device"]) for batch in batches]).T
            taken = np.array([batch["step"] for batch in batches])
            steps = np.maximum(0.0, taken - [seconds(batch["device"]["stall"]) for batch in batches])
            return cls(
                loader,
                steps,
                np.array(limit),
                depth=content["depth"],
                ranks=content["ranks"],
                share=content["share"],
                unwaited=float(steps.sum() / taken.sum()),
                name=named(content),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} must be a record of benchmarks/record_batches.py; not found: {error}") from error


def named(content: dict[str, Any]) -> str:
    """Say where a record is from."""
    meta, settings = content["meta"], content["meta"]["settings"]
    step = ", CUDA graphs" if content["graph"] else ""
    changes = " with uncommitted changes" if meta["git_dirty"] else ""
    return (
        f"{meta['device']}, {meta['cpu_count']} cores, {meta['timestamp_utc'][:10]}; {settings['model']}, batch "
        f"{settings['batch']}{step}, torch {meta['torch']}, commit {meta['git_commit'][:10]}{changes}; "
        f"{len(content['batches'])} batches"
    )


def stages_of(host: dict[str, list[float]], device: dict[str, list[float]]) -> tuple[float, float, float]:
    """For how long a batch keeps each thread of the loader from the next batch.

    One thread reads and pins. Decoding is queued by the host and done by the device, at the same time. The thread that
    prepares waits until the device has transformed the batch; its wait for the decoder is the decoder's time.
    """
    decoded = max(host["decode"][1], device["decode"][1])
    transformed = max(host["prepare"][1], device["transform"][1])
    return (
        seconds(host["load"]) + seconds(host["pin"]),
        max(seconds(host["decode"]), seconds(device["decode"])),
        max(0.0, transformed - max(host["prepare"][0], decoded)),
    )


def seconds(span: Sequence[float]) -> float:
    return span[1] - span[0]


@dataclass(frozen=True)
class Scenario:
    """What differs from the record: the first host's loaders take ``slow`` times as long, or batches stall.

    One batch in ``every`` of each rank takes ``stall`` seconds to read, if it does not take longer anyway.
    """

    name: str
    slow: float = 1.0
    stall: float = 0.0
    every: int = RARE


ALIKE = Scenario("all alike")
SCENARIOS = (
    ALIKE,
    Scenario("slow host, x1.5", slow=1.5),
    Scenario("slow host, x2", slow=2.0),
    Scenario("slow host, x4", slow=4.0),
    Scenario("stalls of 200 ms", stall=0.2),
    Scenario("stalls of 1 s", stall=1.0),
)


@dataclass(frozen=True)
class World:
    """``ranks`` that train together, with a queue of ``depth`` batches each; ``worlds`` such are simulated at once."""

    ranks: int
    depth: int
    worlds: int = 1
    steps: int = STEPS
    warm_up: int = WARM_UP

    @classmethod
    def of(cls, ranks: int, depth: int) -> World:
        """So many worlds that stalls of one batch in 1,000 are met a thousand times."""
        return cls(ranks, depth, worlds=max(1, FEWEST_RANKS // ranks))


@dataclass(frozen=True)
class Drawn:
    """Seconds of one batch and step: (stages, worlds, ranks) of the loader, (worlds, ranks) of the two steps."""

    loader: Array
    step: Array
    limit: Array


@dataclass(frozen=True)
class Outcome:
    """What was simulated.

    Attributes:
        share: the speed as a share of the same steps without any loader.
        of_limit: the speed as a share of as many ranks whose batch is kept on the device.
        late: the 99.9th percentile, over steps, of how many seconds all ranks wait for the last batch.
        step: seconds of a step without any loader, in which the slowest rank is waited for.
    """

    share: float
    of_limit: float
    late: float
    step: float


def simulate(record: Record, world: World, scenario: Scenario = ALIKE, *, seed: int = 0) -> Outcome:
    """Train in step, by recorded times.

    >>> even = Record(loader=np.full((1, 10), 0.5), steps=np.ones(10), limit=np.ones(10))
    >>> simulate(even, World(ranks=4, depth=1)).share
    1.0
    """
    loader = Loader(len(record.loader), (world.worlds, world.ranks))
    offset = world.depth + 1
    ends = np.zeros((offset + world.steps, world.worlds))  # of step k in row k + offset; before the first, all is over
    unfed, limit, late = np.zeros((3, world.steps, world.worlds))
    for step, drawn in enumerate(draws(record, world, scenario, seed)):
        before = ends[offset + step - 1][:, None]
        is_unused = step <= offset  # there are depth + 2 slots, free before the first step
        ready = loader.next(drawn.loader, slot_free=np.zeros(1) if is_unused else ends[step][:, None])
        begin = np.maximum(ready, before)
        ends[offset + step] = (begin + drawn.step).max(axis=1)
        late[step] = (begin - before).max(axis=1)
        unfed[step], limit[step] = drawn.step.max(axis=1), drawn.limit.max(axis=1)
    taken = np.diff(ends[offset - 1 :], axis=0)[world.warm_up :].mean()
    without = unfed[world.warm_up :].mean()
    return Outcome(
        share=float(without / taken),
        of_limit=float(limit[world.warm_up :].mean() / taken),
        late=float(np.quantile(late[world.warm_up :], 0.999)),
        step=float(without),
    )


class Loader:
    """The stages of each rank's loader, which hold one batch each, in work or done."""

    def __init__(self, stages: int, shape: tuple[int, int]) -> None:
        self._begun = np.zeros((stages, *shape))  # when each stage took its last batch
        self._done = np.zeros((stages, *shape))

    def next(self, times: Array, slot_free: Array) -> Array:
        """Return when each rank's next batch is ready; the last stage takes it once its slot is free."""
        last = len(times) - 1
        arrived: Array | float = 0.0
        for stage, needed in enumerate(times):
            handed_on = self._begun[stage + 1] if stage < last else np.maximum(self._done[last], slot_free)
            self._begun[stage] = np.maximum(arrived, handed_on)
            self._done[stage] = self._begun[stage] + needed
            arrived = self._done[stage]
        ready: Array = self._done[last]
        return ready


def draws(record: Record, world: World, scenario: Scenario, seed: int) -> Iterator[Drawn]:
    """Yield the times of each step. What depends on chance is the same for each depth and each scenario."""
    shape = world.worlds, world.ranks
    of_loader, of_limit, of_stalls = (np.random.default_rng([seed, number]) for number in range(3))
    factors = np.where(np.arange(world.ranks) < HOST, scenario.slow, 1.0)
    batches = replayed(len(record.steps), world.steps, shape, of_loader)
    kept = replayed(len(record.limit), world.steps, shape, of_limit)
    for batch, limit in zip(batches, kept, strict=True):
        loader = record.loader[:, batch] * factors
        if scenario.stall:
            stalls = of_stalls.random(shape) < 1 / scenario.every
            loader[0] = np.where(stalls, np.maximum(loader[0], scenario.stall), loader[0])
        yield Drawn(loader, record.steps[batch], record.limit[limit])


def replayed(length: int, steps: int, shape: tuple[int, int], rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield which entry of a record each rank has at each step: blocks that begin anywhere, round its end."""
    block = min(BLOCK, length)
    for step in range(steps):
        if step % block == 0:
            begin = rng.integers(length, size=shape)
        yield (begin + step % block) % length


@dataclass(frozen=True)
class Formula:
    """The share of the speed where one batch in ``every`` stalls while it is read, and all else is even.

    >>> round(Formula(ranks=1, depth=2, step=0.040, rest=(0.010, 0.005)).hidden, 3)
    0.145

    When a read begins, ``depth`` batches and one a later stage are ahead of it. So many steps may pass until its batch
    must be there, and it still has to go through the ``rest`` of the stages. A longer stall delays all ranks by
    the rest. Stalls of other ranks that begin before the delay is over run at the same time, and cost nothing more.

    It leaves out that a rank may stall again while its queue is not full yet, so ``pairs`` must be small.
    """

    ranks: int
    depth: int
    step: float
    rest: tuple[float, ...]
    every: int = RARE

    @classmethod
    def of(cls, record: Record, ranks: int, depth: int, step: float) -> Formula:
        return cls(ranks, depth, step, tuple(record.loader[1:].mean(axis=1).tolist()))

    @property
    def held(self) -> int:
        """How many steps the batches last that are ahead of one which is being read."""
        return self.depth + len(self.rest)

    @property
    def hidden(self) -> float:
        """The longest stall, in seconds, that costs nothing."""
        return self.held * self.step - sum(self.rest)

    @property
    def delays(self) -> float:
        """How many stalls a step delay the ranks: of those that overlap, one."""
        some = 1 - (1 - 1 / self.every) ** self.ranks
        return some / (1 + some * self.held)

    def share(self, stall: float) -> float:
        """The share of the speed that is left with stalls of so many seconds."""
        return self.step / (self.step + self.delays * max(0.0, stall - self.hidden))

    def longest(self, loss: float = LOSS) -> float:
        """The longest stall, in seconds, that costs no more than ``loss`` of the speed."""
        return self.hidden + self.step * loss / (1 - loss) / self.delays

    def pairs(self, stall: float) -> float:
        """The part of a step that some rank's second stall within the first one's time costs at most."""
        return self.ranks * (stall / self.step / self.every) ** 2 / 2


@dataclass(frozen=True)
class Grid:
    """A table, to print or to write into a page."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1  # of the columns, those that hold no figures

    def __rich__(self) -> Table:
        table = Table(title=self.title, title_justify="left", box=box.SIMPLE_HEAD)
        for number, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if number < self.names else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        rule = [":---" if number < self.names else "---:" for number in range(len(self.headings))]
        lines = ["| " + " | ".join(row) + " |" for row in (self.headings, rule, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines])


class Study:
    """All that is simulated from a record, for so many ranks and depths."""

    def __init__(self, record: Record, ranks: Sequence[int], depths: Sequence[int], seed: int) -> None:
        self.record = record
        self.ranks = ranks
        self.depths = depths
        self._seed = seed
        self._known: dict[tuple[Scenario, int, int], Outcome] = {}

    def outcome(self, scenario: Scenario, ranks: int, depth: int) -> Outcome:
        key = scenario, ranks, depth
        if key not in self._known:
            self._known[key] = simulate(self.record, World.of(ranks, depth), scenario, seed=self._seed)
        return self._known[key]

    def formula(self, ranks: int, depth: int) -> Formula:
        return Formula.of(self.record, ranks, depth, self.outcome(ALIKE, ranks, self.record.depth).step)

    def longest(self, ranks: int, depth: int) -> float:
        """The longest stall, in seconds, that costs no more than ``LOSS``; 0 if even none does."""
        within, beyond = 0.0, 2 * self.formula(ranks, depth).longest()
        for _ in range(HALVINGS):
            middle = (within + beyond) / 2
            within, beyond = (middle, beyond) if self._is_hidden(middle, ranks, depth) else (within, middle)
        return within

    def least_depth(self, ranks: int, stall: float) -> str:
        """The smallest depth at which such stalls cost no more than ``LOSS``."""
        depths = range(1, MOST_DEPTH + 1)
        found = bisect_left(depths, True, key=lambda depth: self._is_hidden(stall, ranks, depth))
        return str(depths[found]) if found < len(depths) else f"over {MOST_DEPTH}"

    def grids(self) -> list[Grid]:
        return [self.shares(), self.stalls(), self.steps()]

    def shares(self) -> Grid:
        """What the loader's lateness costs."""
        few, many = min(self.ranks), max(self.ranks)
        rows = []
        for scenario in SCENARIOS:
            for depth in self.depths:
                found = {ranks: self.outcome(scenario, ranks, depth) for ranks in self.ranks}
                shares = [f"{found[ranks].share:.3f}" for ranks in self.ranks]
                rows.append([scenario.name, str(depth), *shares, ms(found[few].late), ms(found[many].late)])
        late = [f"wait, {few:,}", f"wait, {many:,}"]
        return Grid(
            "Share of the same steps without a loader, by ranks; p99.9 of a step's wait for the last batch, in ms",
            ["scenario", "depth", *(f"{ranks:,}" for ranks in self.ranks), *late],
            rows,
            names=2,
        )

    def stalls(self) -> Grid:
        """How long a stall may be, and which depth hides a given one."""
        lengths = [scenario.stall for scenario in SCENARIOS if scenario.stall]
        rows = []
        for ranks in self.ranks:
            by_formula = {depth: self.formula(ranks, depth).longest() for depth in self.depths}
            longest = [f"{ms(self.longest(ranks, depth))} ({ms(by_formula[depth])})" for depth in self.depths]
            rows.append([f"{ranks:,}", *longest, *(self.least_depth(ranks, stall) for stall in lengths)])
        return Grid(
            f"The longest stall, in ms, of 1 batch in {RARE:,} that costs {LOSS:.0%} (by the formula); "
            "the least depth for a stall",
            ["ranks", *(f"depth {depth}" for depth in self.depths), *(f"for {ms(each)} ms" for each in lengths)],
            rows,
        )

    def steps(self) -> Grid:
        """What the slowest of many ranks costs, beside late batches."""
        rows = []
        for ranks in self.ranks:
            found = self.outcome(ALIKE, ranks, self.record.depth)
            rows.append([f"{ranks:,}", f"{1e3 * found.step:.2f}", f"{found.share:.3f}", f"{found.of_limit:.3f}"])
        return Grid(
            f"All alike, depth {self.record.depth}: a step without a loader, and the share of two limits",
            ["ranks", "step, ms", "of the same steps", "of steps on a kept batch"],
            rows,
        )

    def remarks(self, measured: Record | None = None) -> list[str]:
        """How well formula, simulation and measurement meet."""
        remarks = self._compared(self.record)
        remarks.append(
            f"Where pairs of stalls cost less than {LOSS:.0%}, the formula is {self._error():.3f} off at most."
        )
        if measured is not None:
            remarks += self._compared(measured)
        return remarks

    def _compared(self, measured: Record) -> list[str]:
        ranks = f"{measured.ranks:,} rank{'s' if measured.ranks > 1 else ''}, depth {measured.depth}"
        found = self.outcome(ALIKE, measured.ranks, measured.depth)
        pairs = {"of the limit": (found.of_limit, measured.share)}
        if measured.ranks == 1:  # of several, one waits for the others in its step
            pairs["of the same steps without a loader"] = found.share, measured.unwaited
        return [
            f"{ranks}: {simulated:.3f} {what} simulated, {share:.3f} measured: an error of {simulated - share:+.3f}."
            for what, (simulated, share) in pairs.items()
        ]

    def _error(self) -> float:
        """The largest difference between formula and simulation in the table of shares, where the formula holds."""
        differences = [0.0]
        for scenario in (each for each in SCENARIOS if each.stall):
            for ranks, depth in product(self.ranks, self.depths):
                formula = self.formula(ranks, depth)
                if formula.pairs(scenario.stall) < LOSS:
                    differences.append(abs(formula.share(scenario.stall) - self.outcome(scenario, ranks, depth).share))
        return max(differences)

    def _is_hidden(self, stall: float, ranks: int, depth: int) -> bool:
        return self.outcome(Scenario("", stall=stall), ranks, depth).share >= 1 - LOSS


def ms(duration: float) -> str:
    return f"{1e3 * duration:,.0f}"


def draw(study: Study, path: Path) -> None:
    """Draw the shares of each scenario, with a line for each depth."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (of the extra plot)

    figure = Figure(figsize=(11, 6), layout="constrained")
    panels = figure.subplots(2, len(SCENARIOS) // 2, sharex=True, sharey=True)
    for axes, scenario in zip(panels.flat, SCENARIOS, strict=True):
        for depth in study.depths:
            shares = [study.outcome(scenario, ranks, depth).share for ranks in study.ranks]
            axes.plot(study.ranks, shares, marker="o", label=f"depth {depth}")
        axes.set_title(scenario.name, fontsize=10)
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
    panels[0, 0].legend()
    figure.supxlabel("ranks")
    figure.supylabel("share of the same steps without a loader")
    figure.savefig(path, dpi=160)


def around_marks(page: Path) -> tuple[str, str]:
    """What stands before and after the tables of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} must have {BEGIN}, and {END} after it")
    return before, after


@app.command()
def main(
    *,
    record: Annotated[Path, typer.Argument(help="What record_batches.py wrote, of one GPU.", exists=True)],
    measured: Annotated[Path | None, typer.Option(help="The same of several GPUs, to compare.", exists=True)] = None,
    ranks: Annotated[list[int], typer.Option(min=1, help="How many ranks; may be repeated.")] = list(RANKS),  # noqa: B006
    depths: Annotated[list[int], typer.Option(min=1, help="Prefetch depths; may be repeated.")] = list(DEPTHS),  # noqa: B006
    seed: Annotated[int, typer.Option(min=0, help="Of what depends on chance.")] = 0,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables in Markdown.")] = False,
    page: Annotated[Path | None, typer.Option(help="A page to write the tables into.", exists=True)] = None,
    plot: Annotated[Path | None, typer.Option(help="A picture to draw: .png, .svg or .pdf.")] = None,
) -> None:
    """Simulate many ranks by the recorded times of one, and say what depth and tail the loader needs."""
    try:
        before, after = ("", "") if page is None else around_marks(page)
        study = Study(Record.read(record), ranks, depths, seed)
        remarks = [study.record.name + ".", *study.remarks(None if measured is None else Record.read(measured))]
        text = "\n\n".join([*(grid.markdown() for grid in study.grids()), " ".join(remarks)])
        if page is not None:
            page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
        if plot is not None:
            draw(study, plot)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if markdown:
        typer.echo(text)
    else:
        Console(width=WIDTH).print(*study.grids(), *remarks, sep="\n", highlight=False)


if __name__ == "__main__":
    app()
