"""One rank of a subject: ``python -m tests.integrations.rank MODULE CLASS HOME RANK`` runs its scenarios in turn."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import multiprocessing
import os
import pickle
import sys
import threading
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path

from tests.integrations.contract import SCENARIOS, Contract, Record, Scenario
from tests.native_threads import end_beside_gloo, let_gloo_rest

GRACE = 5.0  # seconds in which threads and workers may end


def main(module: str, name: str, home: str, rank: str) -> None:
    faulthandler.enable()  # its workers, which are forked, write their stacks too when they are aborted
    let_gloo_rest()
    subject: type[Contract] = getattr(importlib.import_module(module), name)
    records: dict[str, Record] = {}
    for scenario_name, scenario in SCENARIOS.items():
        here = replace(scenario, home=Path(home) / scenario_name)
        here.home.mkdir(exist_ok=True)
        if scenario_name == "resumed":
            here = replace(here, resume=records["saved"].state)
        records[scenario_name] = run(subject, here)
        print(f"{scenario_name}: {records[scenario_name]}", flush=True)
    (Path(home) / f"{rank}.pickle").write_bytes(pickle.dumps(records))


def run(subject: type[Contract], scenario: Scenario) -> Record:
    record = Record()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)  # as Python does: what WebDataset leaves open is its own
        try:
            subject.train(scenario, record)
        except Exception as error:
            record.error = f"{type(error).__name__}: {error}"
            if scenario.first_bad is None:
                traceback.print_exc()
                raise
    record.warnings = [f"{each.category.__name__}: {each.message}" for each in caught]
    record.left = left()
    return record


def left() -> list[str]:
    """Threads of fastload's and worker processes that are still there when they had time to end."""
    gc.collect()
    until = time.monotonic() + GRACE
    while (alive := _alive()) and time.monotonic() < until:
        time.sleep(0.01)
    return alive


def _alive() -> list[str]:
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("fastload")]
    return threads + [child.name for child in multiprocessing.active_children()]


if __name__ == "__main__":
    main(*sys.argv[1:])
    if "WORLD_SIZE" in os.environ:
        end_beside_gloo()
