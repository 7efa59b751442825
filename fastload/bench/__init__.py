"""The benchmark: fastload, its peers and the limit, measured by turns in one process.

>>> from fastload import bench
>>> bench.prepare("kernels", cases=["normalize"]).run()  # doctest: +SKIP
PosixPath('benchmarks/results/kernels--nvidia-h200.json')

benchmarks/README.md describes what is timed and how.
"""

from fastload.bench.harness.check import WrongValuesError
from fastload.bench.harness.result import Result
from fastload.bench.harness.suite import Suite
from fastload.bench.harness.table import Table, layout
from fastload.bench.session import SUITES, Session, draw, prepare

__all__ = ["SUITES", "Result", "Session", "Suite", "Table", "WrongValuesError", "draw", "layout", "prepare"]
