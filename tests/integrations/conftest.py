"""What the subjects share: each runs its ranks once, and the table of what held is drawn from the run."""

from __future__ import annotations

import importlib.util

import pytest

from tests.integrations.contract import Contract, Record, run_ranks


@pytest.fixture(scope="class")
def records(request, tmp_path_factory) -> list[dict[str, Record]]:
    """What each rank of a subject saw, by scenario."""
    subject: type[Contract] = request.cls
    if importlib.util.find_spec(subject.library.split(".")[0]) is None:
        pytest.fail(f"{subject.subject} is not installed here: there is no module {subject.library}")
    return run_ranks(subject, tmp_path_factory.mktemp("ranks"))
