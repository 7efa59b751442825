"""The benchmark: fastload, its peers and the limit, in one process and one run, by turns.

>>> from fastload import bench
>>> bench.prepare("kernels", cases=["normalize"]).run()  # doctest: +SKIP
PosixPath('benchmarks/results/kernels--nvidia-h200.json')

benchmarks/README.md says what is timed and how.
"""

from fastload.bench.check import WrongValuesError
from fastload.bench.result import Result
from fastload.bench.session import SUITES, Session, prepare
from fastload.bench.suite import Suite
from fastload.bench.table import Table, layout

__all__ = ["SUITES", "Result", "Session", "Suite", "Table", "WrongValuesError", "layout", "prepare"]
