"""Write the tables and figures of README.md and docs/ from benchmarks/results/*.json alone.

    python benchmarks/tables.py            rewrite them
    python benchmarks/tables.py --check    change nothing; exit 1 and name the pages that differ

A table stands on the lines between these two marks; ``key=value,value`` selects its rows, and their order:

    <!-- table: jpeg case=resnet50_b256 subject=limit,fastload,dali metric=img_per_s -->
    <!-- end -->

Results of further machines lie in benchmarks/results/hosts/, numbered where they have the same GPU. ``hosts/jpeg`` in a
mark names them. One mark lists the machines in the order in which they were measured. Another draws one table of them,
with a line for each subject, and a column for each ``case/variant:column``:

    <!-- hosts: jpeg -->
    <!-- end -->
    <!-- hosts: jpeg subject=fastload,dali_crop resnet50_b256/ordinary:ratio_to_limit loader:loader_img_per_s -->
    <!-- end -->

A figure stands within a sentence. Its mark names suite, case (``case/variant`` where there are variants), subject and
column, and the figure is that of the table's cell, without its spread. Of further machines it is lowest and highest:

    fastload reaches <!-- figure: jpeg resnet50_b256 fastload ratio_to_limit -->0.979<!-- end --> of the limit.
    <!-- figure: hosts/jpeg resnet50_b256/graph fastload ratio_to_limit -->0.976 to 0.984<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fastload.bench import SUITES, Result, layout
from fastload.bench.harness.row import Row
from fastload.bench.harness.table import HEADINGS

TABLE, HOSTS = (
    re.compile(rf"^<!-- {kind}: ([^\n]+) -->\n(?:.*?\n)??<!-- end -->$", re.DOTALL | re.MULTILINE)
    for kind in ("table", "hosts")
)
HOSTS_MARK = re.compile(r"(\S+)(?: subject=(\S+)((?: [^\s:]+:[^\s:]+)+))?")
FIGURE = re.compile(r"<!-- figure: ([^\n]+?) -->[^\n]*?<!-- end -->")
FIGURE_NAMES = 4  # suite, case, subject, column


class MarkError(ValueError):
    """A mark asks for what the result files do not have."""


app = typer.Typer(add_completion=False)


@app.command()
def main(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 if a table or figure differs.")
    ] = False,
    root: Annotated[Path, typer.Option(help="The folder that holds README.md.")] = Path(__file__).parent.parent,
) -> None:
    """Write the tables and figures of README.md and docs/ from benchmarks/results/*.json alone."""
    results = root / "benchmarks" / "results"
    outdated = []
    for page in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        text = page.read_text()
        try:
            drawn = TABLE.sub(_filled(_table, results), text)
            drawn = HOSTS.sub(_filled(_hosts, results), drawn)
            drawn = FIGURE.sub(_filled(_figure, results), drawn)
        except MarkError as error:
            typer.echo(f"{page}: {error}", err=True)
            raise typer.Exit(2) from None
        if drawn != text:
            outdated.append(page)
            if not check:
                page.write_text(drawn)
    for page in outdated:
        typer.echo(f"{page}: {'its figures differ from the result files' if check else 'figures rewritten'}")
    if check and outdated:
        typer.echo("Run: python benchmarks/tables.py", err=True)
        raise typer.Exit(1)


def _filled(draw: Callable[[str, Path], str], results: Path) -> Callable[[re.Match[str]], str]:
    """Replace what stands between a mark and its end by what ``draw`` makes of the mark."""

    def fill(mark: re.Match[str]) -> str:
        opening, _ = mark[0].split("-->", maxsplit=1)
        return f"{opening}-->{draw(mark[1], results)}<!-- end -->"

    return fill


def _table(mark: str, results: Path) -> str:
    """Return one table a device, with the rows that the mark selects."""
    suite, *selection = mark.split()
    wanted = {key: values.split(",") for key, _, values in (each.partition("=") for each in selection)}
    tables = [_markdown(_selected(result, wanted, mark)) for result in _results(suite, results)]
    return "\n" + ("\n\n".join(tables) or f"No figures yet: run `fastload bench {suite}` on a GPU.") + "\n"


def _figure(mark: str, results: Path) -> str:
    """Return one cell, without its spread; of further machines the lowest and the highest."""
    if len(names := mark.split()) != FIGURE_NAMES:
        raise MarkError(f"a figure's mark has suite, case, subject and column; got {mark!r}")
    suite, case, subject, column = names
    wanted = _wanted(case, subject)
    is_of_hosts = suite.startswith("hosts/")
    measured = [each for each in _results(suite, results) if not is_of_hosts or _chosen(each, wanted).rows]
    cells = [cell for result in measured for cell in _column(_selected(result, wanted, mark), column)]
    if not all(cells) or (not cells if is_of_hosts else len(cells) != 1):
        raise MarkError(f"{mark!r} must name one figure of one result file; found {len(cells)}: {', '.join(cells)}")
    figures = sorted((cell.partition(" ± ")[0] for cell in cells), key=lambda figure: float(figure.replace(",", "")))
    return " to ".join(dict.fromkeys((figures[0], figures[-1])))


def _hosts(mark: str, results: Path) -> str:
    """Return a list of all further machines, or one table of what each has of the mark's subjects and columns."""
    if (parts := HOSTS_MARK.fullmatch(mark)) is None:
        raise MarkError(f"a mark of hosts has suite, subject=..., and case:column for each column; got {mark!r}")
    if not (found := _results(f"hosts/{parts[1]}", results)):
        raise MarkError(f"no host has a result of {mark!r}")
    measured = sorted(found, key=lambda result: result.meta["timestamp_utc"])
    hosts = {str(number): result for number, result in enumerate(measured, start=1)}
    if parts[2] is None:
        return f"\n{_listed(hosts)}\n"
    drawn, empty = _compared(hosts, parts[2].split(","), [column.split(":") for column in parts[3].split()])
    if empty:
        raise MarkError(f"no host has {', '.join(empty)} of {mark!r}")
    return f"\n{drawn}\n"


def _compared(
    hosts: Mapping[str, Result], subjects: Sequence[str], columns: Sequence[Sequence[str]]
) -> tuple[str, list[str]]:
    """Return a table of the hosts and subjects that have any of the columns, and the columns that none has."""
    lines: list[list[str]] = []
    for number, result in hosts.items():
        name = number
        for subject in subjects:
            cells = [", ".join(_column(_chosen(result, _wanted(case, subject)), column)) for case, column in columns]
            if any(cells):
                lines.append([name, subject, *cells])
                name = ""
    names = [f"{case.replace('/', ', ')}: {HEADINGS.get(column, column)}" for case, column in columns]
    empty = [name for place, name in enumerate(names, start=2) if not any(line[place] for line in lines)]
    return "\n".join(_lines(["host", "subject", *names], 2, lines)), empty


def _listed(hosts: Mapping[str, Result]) -> str:
    lines = []
    for number, result in hosts.items():
        meta, runs = result.meta, _runs(result.rows)
        lines.append([number, meta["device"], str(meta["cpu_count"]), meta["timestamp_utc"][:10], _commit(meta), runs])
    versions = ", ".join(dict.fromkeys(each for result in hosts.values() for each in _versions(result.meta)))
    table = _lines(["host", "GPU", "cores", "measured", "fastload", "runs"], 6, lines)
    return "\n".join([*table, "", f"{versions}. Figures are medians of so many runs ± half the interquartile range."])


def _wanted(case: str, subject: str) -> dict[str, list[str]]:
    """Return what a row must have; ``case`` may name a variant behind a slash."""
    case, _, variant = case.partition("/")
    return {"case": [case], "subject": [subject]} | ({"variant": [variant]} if variant else {})


def _results(named: str, results: Path) -> list[Result]:
    """Return a suite's results, one a device; ``hosts/SUITE`` are those of further machines, in that folder."""
    folder, _, suite = named.rpartition("/")
    results /= folder
    if suite not in SUITES:
        raise MarkError(f"there is no suite {suite!r}; choose from {', '.join(SUITES)}")
    # The tiny sizes of a CPU run show that the suite works, and nothing else.
    files = [path for path in results.glob(f"{suite}--*.json") if not path.stem.endswith("--cpu")]
    return [Result.read(path) for path in sorted(files, key=_device_and_number)]


def _device_and_number(path: Path) -> tuple[str, int]:
    device, _, number = path.stem.rpartition("-")
    return (device, int(number)) if number.isdigit() else (path.stem, 0)


def _selected(result: Result, wanted: dict[str, list[str]], mark: str) -> Result:
    if not (chosen := _chosen(result, wanted)).rows:
        raise MarkError(f"no row of {result.suite} is {mark!r}")
    return chosen


def _chosen(result: Result, wanted: dict[str, list[str]]) -> Result:
    rows = [row for row in result.rows if all(row.get(key) in values for key, values in wanted.items())]
    rows.sort(key=lambda row: [values.index(row[key]) for key, values in wanted.items()])
    return Result(result.suite, result.meta, rows)


def _column(result: Result, column: str) -> list[str]:
    """Return the cells of a column; none if the result has no such column."""
    table, heading = layout(result), HEADINGS.get(column, column)
    return [line[table.headings.index(heading)] for line in table.lines if heading in table.headings]


def _markdown(result: Result) -> str:
    table = layout(result)
    return "\n".join([*_lines(table.headings, table.names, table.lines), "", _caption(result)])


def _lines(headings: list[str], names: int, lines: list[list[str]]) -> list[str]:
    rule = [":---" if number < names else "---:" for number in range(len(headings))]
    return ["| " + " | ".join(cells) + " |" for cells in (headings, rule, *lines)]


def _caption(result: Result) -> str:
    meta = result.meta
    runs = _runs(result.rows)
    seeds = any("std" in row for row in result.rows)
    figures = (
        f"Mean of {runs} seeds ± standard deviation"
        if seeds
        else f"Median of {runs} runs ± half the interquartile range"
    )
    fastload = f"fastload {meta['fastload']} ({_commit(meta)})"
    missing = f" Not installed: {', '.join(meta['missing'])}." if meta["missing"] else ""
    machine = f"{meta['device']}, {meta['cpu_count']} cores, {meta['timestamp_utc'][:10]}"
    return f"{machine}; {', '.join([fastload, *_versions(meta)])}. {figures}.{missing}"


def _runs(rows: Sequence[Row]) -> str:
    """Return how many runs a row has, the least and the most."""
    counts = sorted(row["runs"] for row in rows)
    return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))


def _commit(meta: Mapping[str, Any]) -> str:
    return f"{meta['git_commit'][:10]}{' with uncommitted changes' if meta['git_dirty'] else ''}"


def _versions(meta: Mapping[str, Any]) -> list[str]:
    own = {"torch": meta["torch"], "torchvision": meta["torchvision"]}
    return [f"{name} {version}" for name, version in (own | meta["peers"]).items()]


if __name__ == "__main__":
    app()
