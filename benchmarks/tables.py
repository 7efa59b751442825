"""Write the tables and figures of README.md and docs/ from benchmarks/results/*.json alone.

    python benchmarks/tables.py            rewrite them
    python benchmarks/tables.py --check    change nothing; exit 1 and name the pages that differ

A table stands on the lines between these two marks; ``key=value,value`` selects its rows, and their order:

    <!-- table: jpeg case=resnet50_b256 subject=limit,fastload,dali metric=img_per_s -->
    <!-- end -->

Results of further machines lie in benchmarks/results/hosts/, numbered where they have the same GPU. ``hosts/jpeg`` in a
mark names them.

A figure stands within a sentence. Its mark names suite, case (``case/variant`` where there are variants), subject and
column, and the figure is that of the table's cell, without its spread. Of further machines it is lowest and highest:

    fastload reaches <!-- figure: jpeg resnet50_b256 fastload ratio_to_limit -->0.979<!-- end --> of the limit.
    <!-- figure: hosts/jpeg resnet50_b256/graph fastload ratio_to_limit -->0.976 to 0.984<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fastload.bench import SUITES, Result, layout
from fastload.bench.harness.row import Row
from fastload.bench.harness.table import HEADINGS

TABLE = re.compile(r"^<!-- table: ([^\n]+) -->\n(?:.*?\n)??<!-- end -->$", re.DOTALL | re.MULTILINE)
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
    case, _, variant = case.partition("/")
    wanted = {"case": [case], "subject": [subject]} | ({"variant": [variant]} if variant else {})
    is_of_hosts = suite.startswith("hosts/")
    measured = [each for each in _results(suite, results) if not is_of_hosts or _rows(each, wanted)]
    found = [layout(_selected(result, wanted, mark)) for result in measured]
    heading = HEADINGS.get(column, column)
    cells = [
        line[table.headings.index(heading)] for table in found for line in table.lines if heading in table.headings
    ]
    if not all(cells) or (not cells if is_of_hosts else len(cells) != 1):
        raise MarkError(f"{mark!r} must name one figure of one result file; found {len(cells)}: {', '.join(cells)}")
    figures = sorted((cell.partition(" ± ")[0] for cell in cells), key=lambda figure: float(figure.replace(",", "")))
    return " to ".join(dict.fromkeys((figures[0], figures[-1])))


def _results(named: str, results: Path) -> list[Result]:
    """Return a suite's results, one a device; ``hosts/SUITE`` are those of further machines, in that folder."""
    folder, _, suite = named.rpartition("/")
    results /= folder
    if suite not in SUITES:
        raise MarkError(f"there is no suite {suite!r}; choose from {', '.join(SUITES)}")
    # The tiny sizes of a CPU run show that the suite works, and nothing else.
    files = [path for path in sorted(results.glob(f"{suite}--*.json")) if not path.stem.endswith("--cpu")]
    return [Result.read(path) for path in files]


def _selected(result: Result, wanted: dict[str, list[str]], mark: str) -> Result:
    if not (rows := _rows(result, wanted)):
        raise MarkError(f"no row of {result.suite} is {mark!r}")
    rows.sort(key=lambda row: [values.index(row[key]) for key, values in wanted.items()])
    return Result(result.suite, result.meta, rows)


def _rows(result: Result, wanted: dict[str, list[str]]) -> list[Row]:
    return [row for row in result.rows if all(row.get(key) in values for key, values in wanted.items())]


def _markdown(result: Result) -> str:
    table = layout(result)
    rule = [":---" if number < table.names else "---:" for number in range(len(table.headings))]
    lines = ["| " + " | ".join(cells) + " |" for cells in (table.headings, rule, *table.lines)]
    return "\n".join([*lines, "", _caption(result)])


def _caption(result: Result) -> str:
    meta = result.meta
    counts = [row["runs"] for row in result.rows]
    runs = " to ".join(map(str, sorted({min(counts), max(counts)})))
    commit = meta["git_commit"][:10] + (" with uncommitted changes" if meta["git_dirty"] else "")
    versions = ", ".join(f"{name} {version}" for name, version in meta["peers"].items())
    seeds = any("std" in row for row in result.rows)
    figures = (
        f"Mean of {runs} seeds ± standard deviation"
        if seeds
        else f"Median of {runs} runs ± half the interquartile range"
    )
    missing = f" Not installed: {', '.join(meta['missing'])}." if meta["missing"] else ""
    return (
        f"{meta['device']}, {meta['cpu_count']} cores, {meta['timestamp_utc'][:10]}; fastload {meta['fastload']} "
        f"({commit}), torch {meta['torch']}, torchvision {meta['torchvision']}{', ' if versions else ''}{versions}. "
        f"{figures}.{missing}"
    )


if __name__ == "__main__":
    app()
