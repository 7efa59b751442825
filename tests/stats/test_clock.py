"""What a loader measures of itself, on a clock that passes when it is told to."""

import time

import pytest
import torch

import fastload as fl
from fastload.stats import batch_times, clock, record
from fastload.stats.clock import LoaderClock
from fastload.streams import SyncStream, Timestamp
from tests.report.faults import BATCH, consume, loader_of

CPU = torch.device("cpu")


@pytest.fixture
def pass_of(monkeypatch):
    """A pass whose batches take so many seconds to wait for, and so many to train on."""
    now = [0.0]
    for module in (batch_times, clock):
        monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    side = SyncStream(CPU)

    def run(batches):
        loaders_clock = LoaderClock()
        one_pass = loaders_clock.begin_pass(None, side)
        one_pass.keep_time()
        for stall, train in batches:
            times = one_pass.pulling()
            times.samples = BATCH
            asked = one_pass.asked(None, ready=0)
            now[0] += stall
            one_pass.given(times, asked, None)
            now[0] += train
        return loaders_clock.stats()

    return run


def test_the_share_is_what_training_waits_after_the_first_batch(pass_of):
    stats = pass_of([(9.0, 1.0), (1.0, 3.0), (0.0, 4.0), (3.0, 1.0)])
    assert stats.startup == (9.0,)
    assert stats.recent.batches == 3
    assert stats.recent.seconds == stats.total.seconds == 12.0
    assert stats.recent.stalled == pytest.approx(4 / 12)
    assert (stats.recent.stall.most, stats.recent.stall.p50) == (3.0, 1.0)
    assert stats.recent.samples_per_second == pytest.approx(3 * BATCH / 12)


def test_nothing_is_known_of_a_loader_that_was_not_used():
    stats = fl.PrefetchLoader(loader_of(), device="cpu").stats
    assert (stats.recent.batches, stats.recent.stalled, stats.recent.samples_per_second) == (0, 0.0, 0.0)
    assert stats == fl.Stats()


def test_recent_batches_are_a_window_and_the_total_is_exact(pass_of, monkeypatch):
    monkeypatch.setattr(clock, "RECENT", 2)
    monkeypatch.setattr(record, "KEPT", 3)
    stats = pass_of([(1.0, 1.0), *[(float(number), 1.0) for number in range(1, 9)]])
    assert stats.recent.batches == 2
    assert stats.recent.stall.mean == 7.5
    assert (stats.total.batches, stats.total.stall.mean, stats.total.stall.most) == (8, 4.5, 8.0)


def test_each_pass_begins_with_a_batch_that_is_not_counted():
    loader = fl.PrefetchLoader(loader_of(samples=5 * BATCH), device="cpu")
    for _ in range(3):
        consume(loader)
    stats = loader.stats
    assert stats.total.batches == 3 * 4
    assert stats.total.samples == 3 * 4 * BATCH
    assert len(stats.startup) == 3


def test_stages_and_bytes_of_real_batches():
    loader = fl.PrefetchLoader(loader_of(samples=8 * BATCH), (0.5,) * 3, (0.5,) * 3, device="cpu")
    consume(loader, 0.001)
    recent = loader.stats.recent
    assert list(recent.host) == ["load", "slot", "prepare", "next"]
    assert list(recent.device) == ["copy", "transform"]
    assert recent.bytes == recent.batches * BATCH * (3 * 8 * 8 + 8)
    assert all(0 <= timing.p50 <= timing.p99 <= timing.most for timing in [*recent.host.values(), recent.step])
    assert loader.stats.workers is None


def test_a_copy_of_a_loader_has_measured_nothing():
    import copy  # noqa: PLC0415

    loader = fl.PrefetchLoader(loader_of(samples=4 * BATCH), device="cpu")
    consume(loader)
    assert loader.stats.total.batches == 3
    assert copy.deepcopy(loader).stats.total.batches == 0


def test_an_abandoned_pass_is_counted_as_far_as_it_went():
    loader = fl.PrefetchLoader(loader_of(samples=40 * BATCH), device="cpu")
    for number, _ in enumerate(loader):
        if number == 5:
            break
    assert loader.stats.total.batches == 5


def test_scalars_are_plain_numbers_for_a_logger():
    loader = fl.PrefetchLoader(loader_of(samples=4 * BATCH), device="cpu")
    consume(loader)
    assert all(isinstance(value, float) for value in loader.stats.scalars().values())


def test_a_profiler_sees_the_stages():
    loader = fl.PrefetchLoader(loader_of(samples=4 * BATCH), device="cpu")
    settings = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=settings
    ) as trace:
        consume(loader)
    assert {"fastload.load", "fastload.prepare"} <= {event.name for event in trace.events()}


def test_timestamps_of_the_host_are_passed_at_once():
    start, end = Timestamp(CPU), Timestamp(CPU)
    assert start.passed()
    assert 0 <= start.seconds_to(end) == end.seconds - start.seconds <= time.perf_counter() - start.seconds


@pytest.mark.gpu
def test_seconds_to_a_point_that_the_device_has_not_passed_are_waited_for():
    device = torch.device("cuda")
    start = Timestamp(device)
    torch.cuda._sleep(40_000_000)
    end = Timestamp(device)
    assert not end.passed()
    assert start.seconds_to(end) > 0
    assert end.passed()


@pytest.mark.gpu
def test_a_stall_is_measured_on_the_devices_clock():
    """The consumer's stream waits as long as the side stream works beyond what it does itself."""
    work = torch.zeros(64, 3, 64, 64, dtype=torch.uint8).pin_memory()
    loader = fl.PrefetchLoader([work] * 12, transform=lambda images: (torch.cuda._sleep(40_000_000), images)[1])
    for _ in loader:
        pass
    # Now, since cycles are longer before the device has got up to its speed.
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    torch.cuda._sleep(40_000_000)
    end.record()
    torch.cuda.synchronize()
    asleep = start.elapsed_time(end) / 1e3
    recent = loader.stats.recent
    assert recent.device["transform"].p50 == pytest.approx(asleep, rel=0.2)
    assert recent.stalled > 0.9
