"""The site has every page of docs/ and every public name."""

import re
from pathlib import Path

import pytest

import fastload
from fastload import kernels, transforms

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOT_ON_IT = {"README.md"}  # the list of pages; the site has its navigation
MODULES = {"data", "kernels", "transforms"}


def test_each_page_is_in_the_navigation_once():
    linked = re.findall(r": ([\w/-]+\.md)$", (ROOT / ".mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - NOT_ON_IT
    assert sorted(linked) == sorted(pages | {"index.md"})


@pytest.mark.parametrize("module", [fastload, transforms, kernels], ids=lambda module: module.__name__)
def test_each_public_name_is_in_the_api(module):
    shown = set(re.findall(r"^::: ([\w.]+)$", "".join(page.read_text() for page in (DOCS / "api").glob("*.md")), re.M))
    assert {f"{module.__name__}.{name}" for name in module.__all__ if name not in MODULES} <= shown
