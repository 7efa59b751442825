"""Rewrite the tables in README.md and docs/*.md from benchmarks/results/*.json alone.

    python benchmarks/tables.py            rewrite them
    python benchmarks/tables.py --check    change nothing; exit 1 and name the pages whose tables differ

A table stands between the lines ``<!-- table: SUITE -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from fastload.bench import SUITES, Result, layout

MARKED = re.compile(r"^<!-- table: (\S+) -->\n(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE)


app = typer.Typer(add_completion=False)


@app.command()
def main(
    *,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if a table differs.")] = False,
    root: Annotated[Path, typer.Option(help="The folder that holds README.md.")] = Path(__file__).parent.parent,
) -> None:
    """Rewrite the tables in README.md and docs/*.md from benchmarks/results/*.json alone."""
    outdated = []
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        text = page.read_text()
        drawn = _redrawn(page, text, root / "benchmarks" / "results")
        if drawn != text:
            outdated.append(page)
            if not check:
                page.write_text(drawn)
    for page in outdated:
        typer.echo(f"{page}: {'its tables differ from the result files' if check else 'tables rewritten'}")
    if check and outdated:
        typer.echo("Run: python benchmarks/tables.py", err=True)
        raise typer.Exit(1)


def _redrawn(page: Path, text: str, results: Path) -> str:
    for mark in MARKED.finditer(text):
        if mark[1] not in SUITES:
            typer.echo(f"{page}: there is no suite {mark[1]!r}; choose from {', '.join(SUITES)}", err=True)
            raise typer.Exit(2)
    return MARKED.sub(lambda mark: _section(mark[1], results), text)


def _section(suite: str, results: Path) -> str:
    """Return what stands in a page for a suite: its markers, and between them one table a device."""
    # What the tiny sizes of a CPU run show is that the suite works.
    files = [path for path in sorted(results.glob(f"{suite}--*.json")) if not path.stem.endswith("--cpu")]
    tables = [_markdown(Result.read(path)) for path in files]
    body = "\n\n".join(tables) or f"No figures yet: run `fastload bench {suite}` on a GPU."
    return f"<!-- table: {suite} -->\n{body}\n<!-- end -->"


def _markdown(result: Result) -> str:
    table = layout(result)
    rule = [":---" if number < table.names else "---:" for number in range(len(table.headings))]
    lines = ["| " + " | ".join(cells) + " |" for cells in (table.headings, rule, *table.lines)]
    return "\n".join([*lines, "", _caption(result)])


def _caption(result: Result) -> str:
    meta = result.meta
    counts = [row["runs"] for row in result.rows]
    runs = " to ".join(map(str, sorted({min(counts), max(counts)})))
    commit = meta["git_commit"][:10] + (" with changes" if meta["git_dirty"] else "")
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
