"""The clock against a profiler's trace: the same waits, whoever measures them."""

import json
from itertools import pairwise

import pytest
import torch

import fastload as fl

BATCHES = 40
MILLISECOND = 1_900_000  # in cycles of an H100 or H200, roughly
SPREAD = 0.05
DEFAULT_STREAM = 7  # as a trace numbers it


def spinning(milliseconds):
    """A transform that keeps the device busy, and leaves the images as they are."""

    def spin(images):
        torch.cuda._sleep(int(milliseconds * MILLISECOND))
        return images

    return spin


def gaps_of(path):
    """Seconds from the end of each step on the consumer's stream to the begin of the next, in a profiler's trace."""
    events = json.loads(path.read_text())["traceEvents"]
    steps = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "kernel" and event["args"]["stream"] == DEFAULT_STREAM
    )
    return [(begin - end) / 1e6 for (_, end), (begin, _) in pairwise(steps)]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("preparing", "training"), [(8, 2), (5, 5), (2, 8)], ids=["input-bound", "balanced", "compute-bound"]
)
def test_stalls_are_the_gaps_in_a_profilers_trace(preparing, training, tmp_path):
    """Within 5% of a step: what lies between two steps in the trace is the wait, and launching the next kernel."""
    images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8).pin_memory()
    loader = fl.PrefetchLoader([images] * BATCHES, transform=spinning(preparing))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in loader:
            spinning(training)(None)
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    stats = loader.stats
    gaps = gaps_of(tmp_path / "trace.json")
    assert len(gaps) == stats.total.batches == BATCHES - 1
    assert abs(sum(gaps) / len(gaps) - stats.total.stall.mean) < SPREAD * stats.total.step.mean
