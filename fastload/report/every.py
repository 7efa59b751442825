"""``report_every``: the verdict during training, every so many batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastload.arguments import integer
from fastload.report.measured import MeasuredLoader
from fastload.report.report import Report

__all__ = ["report_every"]


@contextmanager
def report_every(
    loader: MeasuredLoader, batches: int = 500, tell: Callable[[Report], object] = lambda report: report.show()
) -> Iterator[None]:
    """Report on a loader every so many batches, while the context is open.

    >>> import fastload as fl
    >>> loader = fl.watch(range(30), device="cpu")
    >>> with fl.report_every(loader, 10, tell=lambda report: print(report.stats.total.batches)):
    ...     for batch in loader:
    ...         pass
    9
    19
    29

    Args:
        loader: a ``PrefetchLoader``, or what ``fl.watch`` returns.
        batches: after how many, at least 1.
        tell: what to do with a :class:`fastload.Report`; print it by default. A logger takes
            ``report.stats.scalars()``.

    Raises:
        TypeError: ``loader`` measures nothing, or ``batches`` is not an int.
        ValueError: ``batches`` is less than 1.
    """
    if not isinstance(loader, MeasuredLoader):
        raise TypeError(f"loader must be a PrefetchLoader, or of fl.watch; got {type(loader).__name__}")
    batches = integer("batches", batches, least=1)
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1
        if counted % batches == 0:
            tell(loader.report(show=False))

    loader.clock.listeners.append(count)
    try:
        yield
    finally:
        loader.clock.listeners.remove(count)
