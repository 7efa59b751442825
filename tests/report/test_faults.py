"""The verdict names the fault: loaders that run here, and what was measured of them on a GPU."""

from dataclasses import replace

import pytest
import torch
from torch._inductor import config as inductor
from torch.utils.data import DataLoader, IterableDataset

import fastload as fl
from fastload.report.diagnosis import diagnose
from fastload.report.report import Report
from fastload.report.setup import Setup
from fastload.report.verdict import Bound, Cause
from fastload.stats.stats import Period, Stats, Timing
from fastload.stats.workers import WorkerUsage
from tests.report.faults import BATCH, compute, consume, loader_of, wait

MEAN, STD = (0.5,) * 3, (0.25,) * 3


def verdict_on(loader, step=0.0, cores=2, **settings):
    """What the report says of a loop that takes so long for each batch, as if there were so many cores."""
    with fl.PrefetchLoader(loader, MEAN, STD, device="cpu", **settings) as prefetching:
        consume(prefetching, step)
        report = prefetching.report(show=False)
    return diagnose(report.stats, replace(report.setup, cores=cores))


def test_nothing_is_wrong_where_the_model_takes_longest():
    verdict = verdict_on(loader_of(samples=9 * BATCH), step=0.1)
    assert (verdict.bound, verdict.cause) == (Bound.COMPUTE, Cause.NONE)
    assert verdict.most < 1.06
    assert not verdict.changes


def test_no_workers_are_too_few():
    """Loading takes the interpreter from training, whether or not training finds its batch there in the end."""
    verdict = verdict_on(loader_of(compute(0.002), samples=240), step=0.002)
    assert (verdict.bound, verdict.cause, verdict.stage) == (Bound.INPUT, Cause.TOO_FEW_WORKERS, "load")
    assert "num_workers=1 instead of 0" in verdict.changes[0]


def without_workers(load, computes, waits, dataset=(), **setup):
    """The verdict on a loader that loads a batch in so many seconds, in steps that take a quarter more."""
    step = 1.25 * load
    window = Period(
        batches=100,
        samples=800,
        seconds=100 * step,
        step=Timing(step),
        stall=Timing(waits * step),
        host={"load": Timing(load)},
        cpu={"load": computes * load},
    )
    settings = replace(Setup.of(DataLoader(dataset, batch_size=8), "cpu"), cores=16, **setup)
    return diagnose(Stats(recent=window, total=window), settings)


@pytest.mark.parametrize(
    ("computes", "waits", "of_large_batches"),
    [(1.0, 0.8, Cause.TOO_FEW_WORKERS), (1.0, 0.0, Cause.TOO_FEW_WORKERS), (0.1, 0.8, Cause.SLOW_READS)],
    ids=["waiting", "sharing the interpreter", "reading"],
)
def test_workers_are_for_batches_that_take_longer_than_to_hand_them_over(computes, waits, of_large_batches):
    large, small = (without_workers(load, computes, waits) for load in (0.01, 0.0001))
    assert (large.bound, large.cause) == (Bound.INPUT, of_large_batches)
    assert large.changes[0].startswith("num_workers=")
    assert (small.bound, small.cause) == (Bound.INPUT, Cause.SMALL_BATCHES)
    assert small.changes[0].startswith("Larger batches")
    assert "loaded in 0.1 ms, and a worker takes about 1 ms to hand one over" in small.changes[0]


def test_tiny_batches_that_are_loaded_here_are_too_small_for_workers():
    loader = fl.watch(loader_of(samples=100 * BATCH), device="cpu")
    consume(loader)
    assert loader.report(show=False).verdict.cause is Cause.SMALL_BATCHES


class Numbers(IterableDataset):
    """A stream that does not say how workers share it."""

    def __iter__(self):
        return iter(range(64))


class Shared(type("WebDataset", (Numbers,), {"__module__": "webdataset.compat"})):
    """A user's own, of a library's whose workers share it without more."""


@pytest.mark.parametrize("computes", [1.0, 0.1])
@pytest.mark.parametrize(("dataset", "is_asked"), [((), False), (Numbers(), True), (Shared(), False)])
def test_several_workers_ask_a_stream_to_be_shared_out(computes, dataset, is_asked):
    change = without_workers(0.01, computes, waits=0.75, dataset=dataset).changes[0]
    assert change.startswith("num_workers=4 instead of 0")
    assert ("torch.utils.data.get_worker_info(): else each worker yields all samples" in change) == is_asked


def test_slow_reads_wait_and_do_not_compute():
    verdict = verdict_on(loader_of(wait(0.004), samples=240), step=0.002)
    assert (verdict.bound, verdict.cause) == (Bound.INPUT, Cause.SLOW_READS)
    assert "num_workers=4" in verdict.changes[0]


@pytest.mark.long
def test_slow_reads_of_workers_are_told_from_computing():
    verdict = verdict_on(loader_of(wait(0.02), num_workers=2), step=0.002)
    assert (verdict.bound, verdict.cause) == (Bound.INPUT, Cause.SLOW_READS)


@pytest.mark.long
def test_a_slow_data_set_uses_all_cores():
    verdict = verdict_on(loader_of(compute(0.02), num_workers=2))
    assert (verdict.bound, verdict.cause) == (Bound.INPUT, Cause.SLOW_DATASET)


@pytest.mark.long
def test_too_few_workers_leave_cores_free():
    verdict = verdict_on(loader_of(compute(0.02), samples=160, num_workers=1), step=0.01, cores=16)
    assert (verdict.bound, verdict.cause) == (Bound.INPUT, Cause.TOO_FEW_WORKERS)


@pytest.mark.long
def test_too_many_workers_share_the_cores():
    verdict = verdict_on(loader_of(compute(0.02), num_workers=6))
    assert (verdict.bound, verdict.cause) == (Bound.INPUT, Cause.TOO_MANY_WORKERS)
    assert "num_workers=1 instead of 6" in verdict.changes[0]


@pytest.mark.long
def test_one_slow_worker_is_named():
    batches_of_worker_1 = {BATCH * (4 * turn + 1) for turn in range(15)}
    slow = wait(0.1)
    loader = loader_of(lambda index: slow(index) if index in batches_of_worker_1 else None, num_workers=4)
    verdict = verdict_on(loader, step=0.001)
    assert (verdict.bound, verdict.cause) == (Bound.INPUT, Cause.SLOW_WORKER)
    assert "Worker 1" in verdict.changes[0]


def test_workers_that_are_equally_slow_are_not_called_one_slow_worker():
    assert verdict_on(loader_of(wait(0.002), num_workers=2), step=0.001).cause != Cause.SLOW_WORKER


class Bursts:
    """A loader that yields four batches at once, and then none for long: fast enough on the whole."""

    yields_fresh_batches = True

    def __iter__(self):
        for number in range(32):
            if number % 4 == 0:
                wait(0.1)(number)
            yield torch.zeros(BATCH, 3, 8, 8, dtype=torch.uint8), number


@pytest.mark.long
def test_a_queue_of_one_does_not_outlast_an_uneven_loader():
    verdict = verdict_on(Bursts(), step=0.04, depth=1)
    assert (verdict.bound, verdict.cause) == (Bound.INPUT, Cause.DEPTH)
    assert "depth=4 instead of 1" in verdict.changes[0]
    assert verdict_on(Bursts(), step=0.04, depth=4).bound is Bound.COMPUTE


def test_a_transform_that_takes_longest_is_named():
    def heavy(images):
        compute(0.02)(None)
        return images

    loader = fl.PrefetchLoader(loader_of(samples=160), transform=heavy, device="cpu")
    consume(loader, 0.002)
    verdict = loader.report(show=False).verdict
    assert (verdict.bound, verdict.cause, verdict.stage) == (Bound.INPUT, Cause.HEAVY_TRANSFORM, "transform")


def test_few_batches_are_not_judged():
    loader = fl.PrefetchLoader(loader_of(samples=3 * BATCH), device="cpu")
    consume(loader)
    assert loader.report(show=False).verdict.cause is Cause.TOO_SHORT


def on_gpu(step=0.04, stall=0.0, lead=0.08, host=(), device=(), **setup):
    """The verdict on figures as a GPU gives them, in seconds a batch."""
    times = {"load": 0.001, "slot": 0.03, "prepare": 0.002, "next": 0.0001} | dict(host)
    window = Period(
        batches=100,
        samples=25_600,
        bytes=100 * 154_000_000,
        seconds=100 * step,
        step=Timing(step, step, step, step),
        stall=Timing(stall, stall, stall, stall),
        lead=Timing(lead, lead, lead, lead),
        step_cpu=0.03,
        host={name: Timing(value, value, value, value) for name, value in times.items()},
        cpu=dict.fromkeys(times, 0.0),
        device={name: Timing(value, value, value, value) for name, value in dict(device).items()},
    )
    settings = {
        "device": setup.pop("processor", "cuda"),
        "cores": 16,
        "workers": 15,
        "pin_memory": True,
        "depth": 2,
        "images": "uint8",
    } | setup
    lines = settings.pop("lines", {})
    busy, files = settings.pop("busy", 0.9), settings.pop("files", {})
    usage = WorkerUsage(settings["workers"], 10.0, [busy] * settings["workers"], [busy] * settings["workers"])
    return diagnose(Stats(recent=window, total=window, workers=usage, files=files, lines=lines), Setup(**settings))


def test_a_gpu_that_always_has_its_batch_is_bound_by_computing():
    assert (verdict := on_gpu()).bound is Bound.COMPUTE
    assert verdict.cause is Cause.NONE


def test_decoding_in_the_workers_moves_to_the_gpu():
    verdict = on_gpu(0.1, 0.06, host={"load": 0.1, "slot": 0.0}, transform="dataset.transform", busy=1.0)
    assert (verdict.bound, verdict.cause) == (Bound.INPUT, Cause.DECODE_IN_WORKERS)
    assert verdict.most == pytest.approx(2.5)
    assert "fl.offload(loader) moves dataset.transform" in verdict.changes[0]


@pytest.mark.parametrize(
    ("transform", "images", "cause"),
    [
        ("dataset.transform", "float32", Cause.DECODE_IN_WORKERS),
        ("", "float32", Cause.FLOAT_BATCHES),
        ("", "uint8", Cause.SLOW_READS),
    ],
)
def test_idle_workers_whose_batches_come_as_fast_as_one_thread_pins_them_do_not_wait_for_storage(
    transform, images, cause
):
    pinning = {"load": 0.034, "slot": 0.0}  # 4.5 GB/s, as with 64 workers on as many cores
    verdict = on_gpu(0.044, 0.036, host=pinning, workers=64, cores=64, busy=0.3, transform=transform, images=images)
    assert (verdict.bound, verdict.cause, verdict.stage) == (Bound.INPUT, cause, "load")
    reading = on_gpu(0.244, 0.236, host=pinning | {"load": 0.234}, workers=64, cores=64, busy=0.3, transform=transform)
    assert reading.cause is Cause.SLOW_READS


def test_floats_that_fill_the_bus_are_to_come_as_bytes():
    verdict = on_gpu(0.04, 0.02, host={"slot": 0.0}, device={"copy": 0.04}, images="float32")
    assert (verdict.bound, verdict.cause) == (Bound.COPY, Cause.FLOAT_BATCHES)
    assert "154 MB a batch are copied as float32" in verdict.changes[0]


def test_batches_that_are_not_pinned_are_pinned_by_the_wrong_thread():
    verdict = on_gpu(0.04, 0.01, host={"slot": 0.0, "prepare": 0.039}, device={"copy": 0.004}, pin_memory=False)
    assert verdict.cause is Cause.UNPINNED
    assert "pin_memory=True" in verdict.changes[0]


def test_a_transform_too_heavy_for_the_gpu_is_named():
    verdict = on_gpu(0.04, 0.02, host={"slot": 0.0}, device={"copy": 0.002, "transform": 0.035})
    assert (verdict.bound, verdict.cause, verdict.stage) == (Bound.INPUT, Cause.HEAVY_TRANSFORM, "transform")


DECODING = {"images": "files", "host": {"slot": 0.0, "decode": 0.039}, "device": {"decode": 0.039, "transform": 0.003}}


def test_decoding_that_takes_longest_is_a_heavy_transform():
    verdict = on_gpu(0.04, 0.02, **DECODING, files={"decoded_on_device": 25_600})
    assert verdict.cause is Cause.HEAVY_TRANSFORM


def test_files_that_take_their_batch_to_the_cpu_are_named():
    files = {"decoded_on_device": 20_480, "decoded_on_cpu": 5_120}
    verdict = on_gpu(0.04, 0.02, **DECODING, files=files)
    assert verdict.cause is Cause.REFUSED_FILES
    assert "5120 of 25600 JPEG files were decoded on the CPU" in verdict.changes[0]


def test_files_that_are_decoded_on_the_cpu_may_be_decoded_by_the_workers():
    verdict = on_gpu(0.04, 0.02, device={}, host={"slot": 0.0, "decode": 0.039}, images="files", processor="cpu")
    assert (verdict.cause, verdict.stage) == (Cause.HEAVY_TRANSFORM, "decode")
    assert "collate_fn=functools.partial(fl.collate, decode=True)" in verdict.changes[0]


def line_of(text):
    """Where this file has a line."""
    with open(__file__, encoding="utf-8") as file:
        return f"{__file__}:{next(number for number, line in enumerate(file, 1) if line.strip().startswith(text))}"


def a_loop_that_syncs(loss):
    return loss.item()  # each step


def test_a_hidden_sync_is_found_at_its_line():
    line = line_of("return loss.item()")
    verdict = on_gpu(lead=0.0001, lines={line: 0.8})
    assert (verdict.bound, verdict.cause) == (Bound.HOST, Cause.HIDDEN_SYNC)
    assert line in verdict.why
    assert "`return loss.item()  # each step`" in verdict.changes[0]


def test_a_host_that_is_found_all_over_the_model_is_too_slow():
    verdict = on_gpu(lead=0.0001, lines={line_of("return loss.item()"): 0.2})
    assert (verdict.bound, verdict.cause) == (Bound.HOST, Cause.SLOW_LAUNCHES)
    assert "CUDA graph" in verdict.changes[0]


@pytest.mark.parametrize(("launches", "begin"), [("", "Or torch.compile(model), with "), ("Python", ""), ("C++", None)])
def test_a_slow_host_is_told_to_launch_from_cpp_unless_it_does(launches, begin):
    changes = on_gpu(lead=0.0001, launches=launches).changes
    told = [change for change in changes if "TORCHINDUCTOR_CPP_WRAPPER=1" in change]
    assert [change.partition("TORCHINDUCTOR")[0] for change in told] == ([] if begin is None else [begin])


@pytest.mark.parametrize("from_cpp", [False, True])
def test_a_setup_knows_from_where_compiled_models_launch(from_cpp):
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    loader = [torch.zeros(2)]
    with inductor.patch(cpp_wrapper=from_cpp):
        assert Setup.of(loader, "cpu").launches == ""
        torch.compile(lambda numbers: numbers + 1, backend="aot_eager")(loader[0])
        assert Setup.of(loader, "cpu").launches == ("C++" if from_cpp else "Python")


def test_buffers_sent_in_each_step_are_told_of_where_several_ranks_are_short_of_host_time():
    alone, together = (on_gpu(lead=0.0001, ranks=ranks) for ranks in (1, 2))
    assert (alone.cause, together.cause) == (Cause.SLOW_LAUNCHES, Cause.SLOW_LAUNCHES)
    assert together.changes[: len(alone.changes)] == alone.changes
    assert "model.broadcast_buffers = False" in together.changes[-1]


def test_the_slowest_of_uneven_ranks_is_named():
    def rank(number, stall):
        step = Timing(0.04, 0.04, 0.04, 0.04)
        times = {"load": Timing(0.04, 0.04, 0.04, 0.04)}
        window = Period(100, 800, seconds=4, step=step, stall=Timing(stall), host=times, cpu={"load": 0.03})
        return Stats(recent=window, total=window, rank=number)

    setup = Setup(cores=2, workers=0, depth=2)
    report = Report.of(rank(0, 0), setup, [rank(0, 0.001), rank(1, 0.0), rank(2, 0.012), rank(3, 0.001)])
    assert report.verdict.cause is Cause.UNEVEN_RANKS
    assert report.stats.rank == 2
    assert "rank 2 of 4 waits for its input 30% of the time, the others 2%" in report.verdict.why
    alike = Report.of(rank(0, 0), setup, [rank(number, 0.012) for number in range(4)])
    assert alike.verdict.cause is not Cause.UNEVEN_RANKS


def test_shared_memory_that_is_nearly_full_is_told_of():
    verdict = on_gpu(shared_memory=8 * 2**30)  # 15 workers with 2 batches of 154 MB each
    assert verdict.cause is Cause.NONE
    assert "/dev/shm" in verdict.changes[0]
    assert not on_gpu(shared_memory=64 * 2**30).changes


def test_workers_that_start_anew_in_each_epoch_are_to_stay():
    loader = fl.PrefetchLoader(loader_of(samples=8 * BATCH, num_workers=1), device="cpu")
    for _ in range(3):
        consume(loader, 0.002)
    assert any("persistent_workers=True" in change for change in loader.report(show=False).verdict.changes)
