"""Gather the pages of the site in build/pages: those of docs/, which can be read as plain files, and README as home.

``make docs`` gathers them, and builds the site into build/site.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from gallery import gallery

ROOT = Path(__file__).parents[1]
DOCS, PAGES = ROOT / "docs", ROOT / "build" / "pages"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[\w-]+)?\)")
PICTURE = re.compile(r'"docs/(pictures/[^"]+)"')


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(DOCS, PAGES, ignore=shutil.ignore_patterns("*.py", "README.md", "__pycache__"))
    for page in PAGES.rglob("*.md"):
        page.write_text(within_site(page.read_text(), DOCS / page.relative_to(PAGES)))
    home = within_site((ROOT / "README.md").read_text(), ROOT / "README.md")
    (PAGES / "gallery.md").write_text(gallery(PAGES))
    (PAGES / "index.md").write_text(PICTURE.sub(r'"\1"', home))


def within_site(text: str, page: Path) -> str:
    """Leave out links from ``page`` to files that are not on the site; from README, links are to docs/."""

    def rewritten(link: re.Match[str]) -> str:
        words, target, anchor = link.groups()
        if "://" in target:
            return link[0]
        file = (page.parent / target).resolve()
        if not file.is_relative_to(DOCS) or file == DOCS / "README.md":
            return words
        return link[0] if page.is_relative_to(DOCS) else f"[{words}]({file.relative_to(DOCS)}{anchor or ''})"

    return LINK.sub(rewritten, text)


if __name__ == "__main__":
    main()
