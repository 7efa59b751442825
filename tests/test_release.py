"""A release says its version in three places, and all say the same."""

import re
from pathlib import Path

import fastload as fl

ROOT = Path(__file__).parents[1]


def test_changelog_and_citation_have_the_version():
    (released, day) = re.search(
        r"^## \[([\d.]+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    ).groups()
    cited = dict(re.findall(r"^([\w-]+): (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert (cited["version"], cited["date-released"]) == (released, day)
    assert fl.__version__ == released
