"""How much a property test tries: all of it on a GPU and in ``make soak``, less where kernels are interpreted.

Each commit draws other examples (``conftest.py``), so what one run leaves out a later one tries.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any, TypeVar

import torch
from hypothesis import settings

Amount = TypeVar("Amount", int, float, list[Any])

FULL = torch.cuda.is_available() or os.environ.get("FASTLOAD_EXAMPLES") == "full"


def count(*, full: Amount, here: Amount) -> Amount:
    """``full`` on a GPU and in ``make soak``, else ``here``."""
    return full if FULL else here


def examples(*, full: int, here: int) -> settings:
    """Try a property on so many examples: ``@examples(full=500, here=50)`` above ``@given(...)``."""
    return settings(max_examples=count(full=full, here=here))


def variants(*factors: Sequence[Any], ways: int = 2) -> list[tuple[Any, ...]]:
    """All combinations; where fewer are tried, so many that each ``ways`` values of as many factors meet in one."""
    rows = list(product(*(range(len(values)) for values in factors)))
    chosen = rows if FULL else _covering(rows, ways)
    return [tuple(values[index] for values, index in zip(factors, each, strict=True)) for each in chosen]


def _covering(rows: list[tuple[int, ...]], ways: int) -> list[tuple[int, ...]]:
    """Greedily: next the row in which most values meet that have not met."""
    meetings = {row: set(combinations(enumerate(row), ways)) for row in rows}
    chosen, missing = [], set().union(*meetings.values())
    while missing:
        row = max(rows, key=lambda row: len(missing & meetings[row]))
        chosen.append(row)
        missing -= meetings[row]
    return chosen
