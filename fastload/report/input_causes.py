"""``cause_of_waiting``: why training waits for its input, and what to change.

Each rule looks for one cause, and the first that finds its own is the cause.
"""

from __future__ import annotations

from collections.abc import Callable

from fastload.report.case import Case
from fastload.report.verdict import Cause

__all__ = ["COMPUTING", "cause_of_waiting", "moving", "ms", "small_batches", "too_few_workers"]

# Below, workers wait for something more than they compute.
COMPUTING = 0.4
# A loader that waits for room during this part of the time is fast enough on the whole.
SPARE = 0.15
# So much of a core has to be free for one more worker.
FREE = 0.75
# Seconds that handing a batch over from a worker takes. On two cores no batches that are loaded in 0.6 ms came earlier
# from workers than without; of those that are loaded in 2 ms, the ones of two small tensors did.
HANDING_OVER = 1e-3
# Bytes a second. A DataLoader's thread that pins copies 1.3 to 1.9e9 on two cores, out of memory that it maps anew for
# each batch. Where idle workers' batches come faster than this, they wait for that thread rather than for storage.
PINNING = 2e9
# Of the JPEG files, decoded on the CPU: many times slower, and a file that the GPU refuses takes its batch with it.
REFUSED = 0.01

Found = tuple[Cause, list[str]]


def cause_of_waiting(case: Case) -> Found:
    """The cause, and the changes that cure it, the most promising first."""
    rules = [_depth, *RULES[case.stage if case.stage in RULES else "prepare"]]
    return next(found for rule in rules if (found := rule(case)) is not None)


def moving(case: Case) -> list[str]:
    """What could move from the workers to the device."""
    setup = case.setup
    if not (setup.has_device and setup.transform and setup.images != "files"):
        return []
    return [
        f"fl.offload(loader) moves {setup.transform} and the decoding of files to the GPU; fastload doctor measures "
        "what that wins."
    ]


def _depth(case: Case) -> Found | None:
    window, depth = case.window, case.setup.depth
    room, load = window.host.get("slot"), window.host.get("load")
    if depth is None or room is None or load is None or room.mean < SPARE * window.step.mean:
        return None
    return Cause.DEPTH, [
        f"depth={2 * depth + 2} instead of {depth}: batches come unevenly (loading one takes {ms(load.p50)} in the "
        f"median, {ms(load.p99)} at most of 99%). On the whole they come fast enough: the loader waits for room "
        f"{room.mean / window.step.mean:.0%} of the time."
    ]


def _slow_worker(case: Case) -> Found | None:
    usage = case.stats.workers
    if usage is None or usage.slowest is None:
        return None
    return Cause.SLOW_WORKER, [
        f"Worker {usage.slowest} is slower than the other {usage.workers - 1}, which wait for it: look at what it "
        "reads (a shard of larger files, another disk) and at what else runs on its core. With in_order=False in the "
        "DataLoader, others' batches overtake its."
    ]


def _no_data_loader(case: Case) -> Found | None:
    if case.setup.workers is not None:
        return None
    return Cause.SLOW_DATASET, [
        f"The wrapped loader takes {ms(case.window.host['load'].mean)} a batch. It is no DataLoader, so nothing is "
        "known of its insides."
    ]


def _too_many_workers(case: Case) -> Found | None:
    workers, cores = case.setup.workers or 0, case.setup.cores
    if workers <= cores or case.computing < COMPUTING:
        return None
    return Cause.TOO_MANY_WORKERS, [
        f"num_workers={max(1, cores - 1)} instead of {workers}: they share {cores} cores with the training thread.",
        *moving(case),
    ]


def small_batches(case: Case) -> Found | None:
    """What to say of a loader without workers that hands its batches over faster than workers could."""
    load = case.window.host["load"].mean
    if case.setup.workers or load >= HANDING_OVER:
        return None
    return Cause.SMALL_BATCHES, [
        "Larger batches, or a data set that loads a batch at once (batch_size=None, and a BatchSampler as sampler): a "
        f"batch is loaded in {ms(load)}, and a worker takes about {ms(HANDING_OVER)} to hand one over, so workers are "
        "unlikely to help."
    ]


def _slow_pinning(case: Case) -> Found | None:
    load, workers = case.window.host["load"].mean, case.setup.workers
    if not (workers and case.setup.pin_memory) or case.computing >= COMPUTING:
        return None
    if case.window.bytes < PINNING * load * case.window.batches:
        return None
    return _decode_in_workers(case) or _float_batches(case)


def _slow_reads(case: Case) -> Found | None:
    if case.computing >= COMPUTING:
        return None
    number = max(2 * (case.setup.workers or 0), 4)
    return Cause.SLOW_READS, [
        f"num_workers={number} instead of {case.setup.workers}: loading computes {case.computing:.0%} of the time and "
        "waits for storage, the network or a lock for the rest, so more workers wait for more files at the same time. "
        f"Fewer and larger files, or a local disk, are read faster.{case.setup.asked_by(number)}"
    ]


def _too_few_workers(case: Case) -> Found | None:
    workers = case.setup.workers
    return None if workers and (case.free_cores < FREE or workers >= case.setup.cores) else too_few_workers(case)


def too_few_workers(case: Case) -> Found:
    """What to say of a loader that could have more workers."""
    workers, cores = case.setup.workers or 0, case.setup.cores
    number = max(workers + 1, min(case.workers_needed, cores - (cores > 1)))
    return Cause.TOO_FEW_WORKERS, [
        f"num_workers={number} instead of {workers}: loading computes {case.computing:.0%} of the time, and "
        f"{case.free_cores:.1f} of {cores} cores are free. {case.workers_needed} with a core each would keep up."
        f"{case.setup.asked_by(max(number, case.workers_needed))}",
        *moving(case),
    ]


def _decode_in_workers(case: Case) -> Found | None:
    changes = moving(case)
    return (Cause.DECODE_IN_WORKERS, changes) if changes else None


def _slow_dataset(case: Case) -> Found:
    return Cause.SLOW_DATASET, [
        f"The data set's __getitem__ and the collate function: with training they use up the {case.setup.cores} cores, "
        f"and {case.workers_needed} workers with a core each would keep up. Do once what is the same in every epoch."
    ]


def _float_batches(case: Case) -> Found | None:
    window, images = case.window, case.setup.images
    if not images.startswith(("float", "bfloat")):
        return None
    return Cause.FLOAT_BATCHES, [
        "Hand over uint8 images, and normalise on the device: fl.PrefetchLoader(loader, mean, std), with no ToTensor, "
        f"ToDtype or Normalize in the data set; or fl.offload(loader). {window.bytes / window.batches / 1e6:.3g} MB a "
        f"batch are copied as {images}; uint8 is a quarter of float32."
    ]


def _unpinned(case: Case) -> Found | None:
    setup = case.setup
    if setup.pin_memory or setup.workers is None or setup.images == "files" or not setup.has_device:
        return None
    return Cause.UNPINNED, [
        "pin_memory=True in the DataLoader: its thread pins batches then, and not the one that queues the transforms, "
        f"for which a batch takes {ms(case.window.host['prepare'].mean)} now."
    ]


def _slow_host(case: Case) -> Found:
    return Cause.HEAVY_TRANSFORM, [
        f"The host takes {ms(case.window.host['prepare'].mean)} a batch to queue its copies and transforms: fewer "
        "tensors in a batch, and a transform of fewer steps."
    ]


def _decode_in_training(case: Case) -> Found | None:
    if case.setup.has_device:
        return None
    return Cause.HEAVY_TRANSFORM, [
        f"The files of a batch take {ms(case.stages['decode'])} to decode, in the training process, since there is no "
        "GPU that would: collate_fn=functools.partial(fl.collate, decode=True) in the DataLoader decodes them in its "
        "workers."
    ]


def _heavy_transform(case: Case) -> Found:
    where = "in the workers, if cores are free" if case.setup.has_device else "in worker processes"
    return Cause.HEAVY_TRANSFORM, [
        f"The {case.stage} takes {ms(case.stages[case.stage])} a batch on the {case.setup.device.upper()}: "
        f"print(loader.transform) shows its passes. Leave out the heaviest, or do it {where}."
    ]


def _refused_files(case: Case) -> Found | None:
    files = case.stats.files
    on_cpu, on_device = files.get("decoded_on_cpu", 0), files.get("decoded_on_device", 0)
    if not case.setup.has_device or on_cpu <= REFUSED * (on_cpu + on_device):
        return None
    return Cause.REFUSED_FILES, [
        f"{on_cpu} of {on_cpu + on_device} JPEG files were decoded on the CPU: where the GPU refuses a file, its "
        'whole batch goes there. T.DecodeJpeg(on_error="skip") warns of the first file that is bad for both: leave '
        "such files out of the data set."
    ]


LOADING: list[Callable[[Case], Found | None]] = [
    _slow_worker,
    _no_data_loader,
    _too_many_workers,
    small_batches,
    _slow_pinning,
    _slow_reads,
    _too_few_workers,
    _decode_in_workers,
    _slow_dataset,
]
COPYING: list[Callable[[Case], Found | None]] = [_float_batches, _unpinned, _slow_host]
RULES: dict[str, list[Callable[[Case], Found | None]]] = {
    "load": LOADING,
    "pin": COPYING,
    "copy": COPYING,
    "prepare": COPYING,
    "decode": [_decode_in_training, _refused_files, _heavy_transform],
    "transform": [_heavy_transform],
}


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
