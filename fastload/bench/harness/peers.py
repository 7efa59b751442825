"""Which of the libraries that fastload is measured against are installed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

__all__ = ["versions"]


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package that is installed.

    >>> list(versions(["torch", "no-such-package"]))
    ['torch']
    """
    found = ((package, _version(package)) for package in packages)
    return {package: its_version for package, its_version in found if its_version is not None}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
