"""What the subjects share: each runs its ranks once, and docs/integrations.md holds the table of what held.

``FASTLOAD_WRITE_TABLE=1 make test-integrations`` writes the table anew; without it, a run that differs from it fails.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.integrations.contract import Contract, Record, run_ranks

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->"
CHECKS = [name for name in vars(Contract) if name.startswith("test_")]
HELD, NOTED, FAILED = "yes", "note", "no"


@pytest.fixture(scope="class")
def records(request, tmp_path_factory) -> list[dict[str, Record]]:
    """What each rank of a subject saw, by scenario."""
    subject: type[Contract] = request.cls
    if importlib.util.find_spec(subject.library.split(".")[0]) is None:
        pytest.fail(f"{subject.subject} is not installed here: there is no module {subject.library}")
    return run_ranks(subject, tmp_path_factory.mktemp("ranks"))


def pytest_collection_modifyitems(items):
    for item in items:
        subject = getattr(item, "cls", None)
        if subject is not None and issubclass(subject, Contract) and item.name in CHECKS:
            mark = HELD if getattr(subject, item.name) is getattr(Contract, item.name) else NOTED
            item.user_properties += [("cell", [_row_of(subject), item.name, mark])]


class Table:
    """The marks of a run, by subject and check."""

    def __init__(self) -> None:
        self.marks: dict[str, dict[str, str]] = {}

    def pytest_runtest_logreport(self, report):
        cell = dict(report.user_properties).get("cell")
        if cell is None or (report.when != "call" and report.passed):
            return
        row, check, mark = cell
        self.marks.setdefault(row, {})[check] = mark if report.passed else FAILED

    def pytest_sessionfinish(self, session):
        complete = {row: marks for row, marks in self.marks.items() if len(marks) == len(CHECKS)}
        if not complete or hasattr(session.config, "workerinput"):
            return
        page = PAGE.read_text()
        head, _, rest = page.partition(BEGIN)
        written, _, tail = rest.partition(END)
        if os.environ.get("FASTLOAD_WRITE_TABLE"):
            PAGE.write_text(head + BEGIN + _drawn(complete) + END + tail)
            return
        stated = _without_versions(written)
        differing = [line for line in _without_versions(_drawn(complete)) if line not in stated]
        if differing:
            print("\ndocs/integrations.md says otherwise; FASTLOAD_WRITE_TABLE=1 writes it:", *differing, sep="\n")
            session.exitstatus = 1


def pytest_configure(config):
    config.pluginmanager.register(Table())


@cache  # it reads the metadata of all that is installed, which takes half a second
def _packages() -> Mapping[str, list[str]]:
    """The packages that have each module."""
    return importlib.metadata.packages_distributions()


def _row_of(subject: type[Contract]) -> str:
    """Its name, the version of its library, and how many ranks: "Accelerate 1.15.0, 2 ranks"."""
    name = subject.library.split(".")[0]
    packages = _packages().get(name, [name])
    return f"{subject.subject} | {importlib.metadata.version(packages[0])} | {subject.ranks}"


def _drawn(marks: dict[str, dict[str, str]]) -> str:
    titles = [re.sub(r"test_(\d+)_.*", r"\1", check).lstrip("0") for check in CHECKS]
    lines = [
        f"| | version | ranks | {' | '.join(titles)} |",
        f"|---|---|--:|{'---|' * len(CHECKS)}",
        *(f"| {row} | {' | '.join(marks[row][check] for check in CHECKS)} |" for row in sorted(marks)),
    ]
    return "\n".join(lines) + "\n"


def _without_versions(table: str) -> list[str]:
    return [re.sub(r"\| [^|]* \| (\d+) \|", r"| \1 |", line, count=1) for line in table.splitlines()[2:]]
