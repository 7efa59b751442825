"""``MeasuredLoader``: what a loader that measures its batches has for its user."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastload.report.ranks import gathered
from fastload.report.report import Report
from fastload.report.setup import Setup
from fastload.stats.clock import LoaderClock
from fastload.stats.stats import Stats

__all__ = ["MeasuredLoader"]


class MeasuredLoader:
    """A loader around another, with a ``clock``. A subclass says how it is set up, and which rank it is."""

    loader: Iterable[Any]
    clock: LoaderClock

    @property
    def stats(self) -> Stats:
        """What was measured so far: see :class:`fastload.Stats`."""
        return self.clock.stats(self._rank)

    def report(
        self,
        *,
        plot: str | Path | None = None,
        trace: str | Path | None = None,
        all_ranks: bool = False,
        show: bool = True,
    ) -> Report:
        """Say where the time of the last batches went, what bounds training, and what to change.

        >>> import torch, fastload as fl
        >>> images = torch.zeros(64, 1, 4, 4, dtype=torch.uint8)
        >>> loader = fl.PrefetchLoader(torch.utils.data.DataLoader(images, batch_size=4), device="cpu")
        >>> for batch in loader:
        ...     pass
        >>> print(loader.report(show=False).verdict.bound.value)
        input-bound

        It prints a sentence and a table, and returns them as a :class:`fastload.Report` with the figures, which
        docs/report.md explains. With ``all_ranks`` it is of the slowest rank of ``torch.distributed``: all ranks must
        call it, and the first prints. ``plot`` and ``trace`` are files to write: a picture of the last steps, as
        :meth:`fastload.Report.plot` does, and a trace of the last batches.
        """
        stats = self.stats
        ranks = gathered(stats) if all_ranks else []
        report = Report.of(stats, self._setup, ranks, self.clock.batches)
        if show and (not ranks or stats.rank == 0):
            report.show()
        if plot is not None:
            report.plot(plot)
        if trace is not None:
            report.trace(trace)
        return report

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    @property
    def _rank(self) -> int:
        return 0

    @property
    def _setup(self) -> Setup:
        raise NotImplementedError
