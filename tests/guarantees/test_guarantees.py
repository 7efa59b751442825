"""One test or more for each numbered guarantee of docs/guarantees.md."""

import dataclasses
import gc
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
import weakref
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import MutableMapping

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
from torchvision import tv_tensors
from torchvision.models import resnet18

import fastload as fl
from fastload import transforms as T
from tests.batches import ClassicPrefetcher, Numbered, NumberedBatches, numbered_loader
from tests.files import jpeg

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF_A_MILLISECOND = 1_000_000  # in cycles of the GPU's clock, roughly

Pair = namedtuple("Pair", "images labels")


# G1: values


def test_g01_values_are_those_of_the_reference_transform():
    prefetched = list(fl.PrefetchLoader(numbered_loader(), MEAN, STD, device="cpu"))
    for (images, labels), (expected, numbers) in zip(prefetched, numbered_loader(), strict=True):
        reference = fl.kernels.reference.flip_normalize(expected, MEAN, STD)
        assert torch.equal(images, reference)
        assert torch.equal(labels, numbers)


def test_g01_a_loader_may_reuse_its_pinned_buffer_once_asked_for_more():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    buffer = torch.empty(4, 3, 256, 256, dtype=torch.uint8, pin_memory=device == "cuda")

    def batches():
        for number in range(50):
            yield buffer.fill_(number)

    class Reusing:
        def __iter__(self):
            return batches()

    scale = T.Normalize([0.0] * 3, [1 / 255] * 3)
    for number, images in enumerate(fl.PrefetchLoader(Reusing(), transform=scale, device=device)):
        assert images.unique().tolist() == [number]


def count_wrong(loader, *, behind: int, habit: str, batches: int = 200) -> int:
    """How many batches do not hold their number, read by a device that is ``behind`` steps behind the host."""
    streams = (
        [torch.cuda.current_stream(), torch.cuda.Stream()] if habit == "streams" else [torch.cuda.current_stream()]
    )
    wrong = torch.zeros(batches, dtype=torch.bool, device="cuda")
    ends, held = [], []
    iterator = iter(loader)
    for number in range(batches):
        with torch.cuda.stream(streams[number % len(streams)]):
            images, labels = next(iterator)
            torch.cuda._sleep(HALF_A_MILLISECOND)
            if habit == "slices":
                images = images[3:5]
            wrong[number] = (images != number).any() | (labels != number).any()
            ends.append(torch.cuda.Event())
            ends[-1].record()
        if habit in ("kept", "slices"):
            held.append((number, images))
            held = held if habit == "kept" else held[-3:]
        if number >= behind:
            ends[number - behind].synchronize()
    torch.cuda.synchronize()
    late = sum(bool((images != number).any()) for number, images in held)
    return int(wrong.sum()) + late


@pytest.mark.gpu
@pytest.mark.parametrize("habit", ["dropped", "kept", "slices", "streams"])
@pytest.mark.parametrize("behind", [2, 5, 20])
@pytest.mark.parametrize("depth", [1, 20])
def test_g01_no_batch_is_overwritten_under_a_late_device(behind, habit, depth):
    keep_numbers = T.Normalize([0.0] * 3, [1 / 255] * 3)
    loader = fl.PrefetchLoader(NumberedBatches(200), transform=keep_numbers, depth=depth)
    assert count_wrong(loader, behind=behind, habit=habit) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("behind", [2, 5, 20])
def test_g01_the_harness_finds_the_classic_prefetcher_wrong(behind):
    assert count_wrong(ClassicPrefetcher(NumberedBatches(200)), behind=behind, habit="dropped") > 0


@pytest.mark.gpu
def test_g01_the_harness_finds_a_forgotten_record_stream(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    loader = fl.PrefetchLoader(NumberedBatches(200), depth=20)
    assert count_wrong(loader, behind=20, habit="dropped") > 0


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "cuda-graphs"])
def test_g01_training_gives_the_losses_of_a_synchronous_loop_bit_for_bit(compiled):
    normalize = T.Normalize(MEAN, STD, dtype=torch.bfloat16, memory_format=torch.channels_last)
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randint(0, 256, (32, 3, 64, 64), dtype=torch.uint8, generator=generator), torch.arange(32) % 10)
        for _ in range(200)
    ]

    def synchronous():
        for images, labels in batches:
            yield normalize(images.cuda()), labels.cuda()
            torch.cuda.synchronize()

    def losses(loader):
        torch.manual_seed(0)
        model = resnet18(num_classes=10).cuda().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        run = torch.compile(model, mode="reduce-overhead") if compiled else model
        values = []
        for images, labels in loader:
            with torch.autocast("cuda", torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(run(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            values.append(loss.detach().clone())
        return torch.stack(values)

    torch.use_deterministic_algorithms(True)
    try:
        expected = losses(synchronous())
        with fl.PrefetchLoader(batches, transform=normalize) as loader:
            actual = losses(loader)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.isfinite(expected).all()
    assert torch.equal(actual, expected)


# G2: order


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("depth", [1, 2, 50])
def test_g02_same_batches_in_the_same_order_with_the_short_last_one(workers, depth):
    loader = fl.PrefetchLoader(numbered_loader(samples=10, num_workers=workers), device="cpu", depth=depth)
    for _ in range(2):
        assert [labels.tolist() for _, labels in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_g02_shuffling_is_that_of_the_wrapped_loader():
    torch.manual_seed(3)
    expected = [labels.tolist() for _, labels in numbered_loader(shuffle=True)]
    torch.manual_seed(3)
    assert [labels.tolist() for _, labels in fl.PrefetchLoader(numbered_loader(shuffle=True), device="cpu")] == expected


def test_g02_an_empty_loader_yields_nothing():
    assert list(fl.PrefetchLoader([], device="cpu")) == []
    iterator = iter(fl.PrefetchLoader([], device="cpu"))
    assert [next(iterator, "end"), next(iterator, "end")] == ["end", "end"]


# G3: overlap


def test_g03_later_batches_are_prepared_while_the_consumer_works():
    prepared = threading.Semaphore(0)

    def transform(images):
        prepared.release()
        return images

    iterator = iter(fl.PrefetchLoader(numbered_loader(), transform=transform, device="cpu", depth=2))
    next(iterator)
    assert all(prepared.acquire(timeout=30) for _ in range(3))  # the one in hand, and `depth` more


@pytest.mark.gpu
def test_g03_later_batches_are_prepared_while_the_consumers_stream_is_busy():
    prepared = []

    def transform(images):
        prepared.append(torch.cuda.Event())
        prepared[-1].record()
        return images.float()

    loader = fl.PrefetchLoader(NumberedBatches(5), transform=transform, depth=3)
    list(loader)  # what is done once only, such as pinning, is done
    prepared.clear()
    iterator = iter(loader)
    next(iterator)
    torch.cuda._sleep(2_000 * HALF_A_MILLISECOND)
    busy = torch.cuda.Event()
    busy.record()
    next(iterator)
    next(iterator)
    while len(prepared) < 3:
        threading.Event().wait(0.01)
    for event in prepared[:3]:
        event.synchronize()
    assert not busy.query()
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_g03_the_consumers_stream_waits_for_its_own_batch_only():
    def slow_from_the_third_on(images):
        if images.flatten()[0].item() >= 2:
            torch.cuda._sleep(2_000 * HALF_A_MILLISECOND)
        return images

    like_a_batch = torch.zeros(16, 3, 64, 64, dtype=torch.uint8, device="cuda")
    like_a_batch.sum() + like_a_batch.sum()  # CUDA loads a kernel when it is first used, and waits for the device then
    iterator = iter(fl.PrefetchLoader(NumberedBatches(3), transform=slow_from_the_third_on, depth=3))
    total = next(iterator)[0].sum() + next(iterator)[0].sum()
    done = torch.cuda.Event()
    done.record()
    done.synchronize()
    assert total == 16 * 3 * 64 * 64
    third = next(iterator)[0]
    third.sum()
    late = torch.cuda.Event()
    late.record()
    assert not late.query()
    torch.cuda.synchronize()


# G4: memory


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_g04_no_more_than_depth_and_two_batches_are_alive(depth):
    alive, most = set(), 0

    class Batch(torch.Tensor):
        pass

    def batches():
        nonlocal most
        for number in range(30):
            batch = torch.full((2,), number).as_subclass(Batch)
            alive.add(number)
            weakref.finalize(batch, alive.discard, number)
            most = max(most, len(alive))
            yield batch
            del batch

    class Loader:
        def __iter__(self):
            return batches()

    loader = fl.PrefetchLoader(Loader(), device="cpu", depth=depth)
    for _ in range(3):
        for _ in loader:
            assert len(alive) <= depth + 2
    del _
    gc.collect()
    assert most <= depth + 2
    assert not alive


def reserved_memory(loader, *, behind: int) -> list[int]:
    """The allocator's memory after each step, on a device that is ``behind`` steps behind the host.

    All places are taken once at the beginning: later it is a matter of microseconds whether the last place is needed
    before the consumer has let go of a batch.
    """
    ends, reserved = [], []
    for number, (images, _) in enumerate(loader):
        if number == 0:
            first = images
        if number == 1:
            wait_until_nothing_is_allocated()
            del first
        torch.cuda._sleep(6 * HALF_A_MILLISECOND)  # slower than the loader
        images.max()
        ends.append(torch.cuda.Event())
        ends[-1].record()
        if number >= behind:
            ends[number - behind].synchronize()
        reserved.append(torch.cuda.memory_reserved())
    return reserved


def wait_until_nothing_is_allocated():
    before, now = None, torch.cuda.memory_stats()["allocation.all.allocated"]
    while before != now:
        time.sleep(0.1)
        before, now = now, torch.cuda.memory_stats()["allocation.all.allocated"]


def one_batch():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # blocks of earlier tests would be cut up for this one's
    return torch.zeros(64, 3, 224, 224, dtype=torch.uint8).pin_memory(), torch.zeros(64).pin_memory()


@pytest.mark.gpu
@pytest.mark.parametrize("behind", [0, 20])
@pytest.mark.parametrize("depth", [2, 20])
def test_g04_device_memory_after_1000_batches_is_that_after_50(behind, depth):
    loader = fl.PrefetchLoader([one_batch()] * 1000, MEAN, STD, depth=depth)
    reserved = reserved_memory(loader, behind=behind)
    assert len(reserved) == 1000
    assert max(reserved[50:]) <= reserved[49]


@pytest.mark.gpu
def test_g04_device_memory_after_20_epochs_is_that_after_50_batches():
    loader = fl.PrefetchLoader([one_batch()] * 50, MEAN, STD)
    reserved = [reserved_memory(loader, behind=20)[-1] for _ in range(20)]
    assert max(reserved) <= reserved[0]


@pytest.mark.gpu
def test_g04_at_most_depth_and_two_batches_are_on_the_device():
    batch = one_batch()
    size = sum(tensor.nbytes for tensor in batch)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    for _ in fl.PrefetchLoader([batch] * 60, depth=3):
        torch.cuda._sleep(20 * HALF_A_MILLISECOND)  # the host runs ahead, and lets go of batches that are read still
    del _
    on_device = torch.cuda.memory_stats()["active_bytes.all.peak"] - before
    assert 3 * size < on_device < (3 + 2 + 0.1) * size


@pytest.mark.gpu
def test_g04_memory_is_bounded_for_a_consumer_that_changes_streams():
    batch = one_batch()
    size = sum(tensor.nbytes for tensor in batch)
    slow, fast = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    iterator = iter(fl.PrefetchLoader([batch] * 40, depth=1))
    for number in range(40):  # the batch after the next one of each stream's comes on the other
        stream = slow if number % 4 < 2 else fast
        with torch.cuda.stream(stream):
            images, _ = next(iterator)
            if stream is slow:
                torch.cuda._sleep(40 * HALF_A_MILLISECOND)
            images.max()
    torch.cuda.synchronize()
    # Active memory counts what has been let go of until the allocator may give it out again.
    assert torch.cuda.memory_stats()["active_bytes.all.peak"] - before < (1 + 2 + 0.1) * size


class NotingBlocks(DataLoader):
    """Notes how many of the batches of files that it has yielded are alive."""

    def __iter__(self):
        self.blocks, self.most = weakref.WeakSet(), 0
        for batch in super().__iter__():
            self.blocks.add(batch[0])
            self.most = max(self.most, len(self.blocks))
            yield batch
            del batch


@pytest.mark.parametrize("workers", [0, 1])
def test_g04_batches_of_files_are_let_go_of_without_the_cycle_collector(workers):
    """Large trainings run with ``gc.disable()``: a cycle that holds a batch would be kept until the end."""
    files = [(jpeg(32, 32), number) for number in range(200)]
    wrapped = NotingBlocks(files, 4, num_workers=workers, collate_fn=fl.collate)
    transform = T.Compose([T.DecodeJpeg(), T.RandomResizedCrop(16)])
    gc.collect()
    gc.disable()
    try:
        for _ in fl.PrefetchLoader(wrapped, transform=transform, device="cpu", depth=2):
            pass
        assert wrapped.most <= 2 + 2 + 1  # one more where files are decoded
        assert not wrapped.blocks
    finally:
        gc.enable()


# G5: errors


def collect(loader):
    """The labels that arrive, and the error that ends them."""
    labels, error = [], None
    try:
        for _, numbers in loader:
            labels += numbers.tolist()
    except Exception as raised:  # noqa: BLE001  (it is what the test looks at)
        error = raised
    return labels, error


@pytest.mark.parametrize("workers", [0, 2])
def test_g05_an_error_of_the_dataset_arrives_at_its_batch(workers):
    loader = fl.PrefetchLoader(numbered_loader(fail_at=9, num_workers=workers), device="cpu", depth=8)
    labels, error = collect(loader)
    assert labels == list(range(8))
    assert isinstance(error, ValueError)
    assert "sample is broken" in str(error)
    assert collect(loader)[0] == list(range(8))  # and the loader can be used again


def test_g05_an_error_keeps_its_own_traceback():
    with pytest.raises(ValueError, match="sample is broken") as caught:
        list(fl.PrefetchLoader(numbered_loader(fail_at=0), device="cpu"))
    assert "__getitem__" in [entry.name for entry in caught.traceback]


@pytest.mark.parametrize("error", [ArithmeticError("no"), StopIteration("no")])
def test_g05_an_error_of_a_transform_arrives_at_its_batch(error):
    def transform(images):
        if images[0, 0, 0, 0] == 8:
            raise error
        return images

    labels, raised = collect(fl.PrefetchLoader(numbered_loader(), transform=transform, device="cpu"))
    assert labels == list(range(8))
    assert error in (raised, raised.__cause__)


def test_g05_after_an_error_the_pass_is_over():
    iterator = iter(fl.PrefetchLoader(numbered_loader(fail_at=0), device="cpu"))
    with pytest.raises(ValueError, match="broken"):
        next(iterator)
    assert next(iterator, "end") == "end"


def test_g05_an_error_of_iter_is_raised_at_once():
    class Broken:
        def __iter__(self):
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        iter(fl.PrefetchLoader(Broken(), device="cpu"))


class KillsItself(Numbered):
    def __getitem__(self, index):
        if index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_g05_a_killed_worker_is_an_error_and_no_hang():
    loader = DataLoader(KillsItself(), batch_size=4, num_workers=1)
    with pytest.raises(RuntimeError, match=r"DataLoader worker .* (is killed|exited unexpectedly)"):
        for _ in fl.PrefetchLoader(loader, device="cpu"):
            pass


class Hangs(Numbered):
    def __getitem__(self, index):
        if index == 9:
            time.sleep(60)
        return super().__getitem__(index)


def test_g05_a_hanging_worker_is_an_error_after_the_loaders_timeout():
    loader = DataLoader(Hangs(), batch_size=4, num_workers=1, timeout=5)
    batches = iter(fl.PrefetchLoader(loader, device="cpu"))
    assert [next(batches)[1].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(RuntimeError, match="DataLoader timed out"):
        next(batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_g05_running_out_of_memory_in_the_dataset_is_the_datasets_error(workers):
    loader = numbered_loader(fail_at=9, error=MemoryError("512 GiB"), num_workers=workers)
    with pytest.raises(MemoryError, match="512 GiB"):
        list(fl.PrefetchLoader(loader, device="cpu"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_g05_an_error_of_a_destructor_harms_no_batch():
    class Clumsy:
        def __init__(self, number):
            self.number = number

        def __del__(self):
            raise ValueError("dropped")

    batches = fl.PrefetchLoader((Clumsy(number) for number in range(5)), device="cpu")
    assert [batch.number for batch in batches] == [0, 1, 2, 3, 4]


INTERRUPTED = """
import signal, sys, time, torch, fastload as fl
from torch.utils.data import DataLoader, TensorDataset
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background passes on that it is ignored
class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep({seconds})
        return super().__getitem__(index)
if __name__ == "__main__":
    loader = fl.PrefetchLoader(DataLoader(Slow(torch.arange(100)), 2, num_workers={workers}), device="cpu")
    for (batch,) in loader:
        print(batch.tolist(), flush=True)
        time.sleep({pause})
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("seconds", "pause"), [(0.0, 60), (0.2, 0)])  # in the consumer's step; waiting for a batch
def test_g06_an_interrupt_ends_the_process_and_its_workers(tmp_path, workers, seconds, pause):
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED.format(workers=workers, seconds=seconds, pause=pause))
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "[0, 1]\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers get it too
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody is left


class Falsy(Exception):  # noqa: N818
    def __len__(self):
        return 0


class Mute(Exception):  # noqa: N818
    def __str__(self):
        raise TypeError("it has nothing to say")


def own_cause():
    error = ValueError("its own cause")
    error.__cause__ = error
    return error


@pytest.mark.parametrize("make", [Falsy, Mute, own_cause])
def test_g05_odd_errors_arrive_too(make):
    with pytest.raises((Falsy, Mute, ValueError)):
        list(fl.PrefetchLoader(numbered_loader(fail_at=9, error=make()), device="cpu"))


@pytest.mark.parametrize("error", [OSError("no"), StopIteration("no")])
def test_g05_an_error_of_an_objects_own_to_ends_the_pass(error):
    class Stubborn:
        def to(self, _device):
            raise error

    iterator = iter(fl.PrefetchLoader([Stubborn(), torch.ones(1)], device="cpu"))
    with pytest.raises((OSError, RuntimeError), match=r"no|StopIteration"):
        next(iterator)
    assert next(iterator, "end") == "end"


def test_g05_a_transform_without_a_result_is_named():
    with pytest.raises(TypeError, match=r"must return a tensor of images; .*returned None"):
        list(fl.PrefetchLoader(numbered_loader(), transform=lambda _: None, device="cpu"))


def test_g05_an_error_that_is_dropped_keeps_no_batch():
    references = []

    def one_batch():
        batch = torch.ones(2, 3, 4, 4)
        references.append(weakref.ref(batch))
        return batch

    loader = fl.PrefetchLoader((one_batch() for _ in range(1)), transform=lambda _: None, device="cpu")
    gc.collect()
    gc.disable()
    try:
        _, error = collect(loader)
        assert isinstance(error, TypeError)
        error.__traceback__ = None
        assert references[0]() is None
    finally:
        gc.enable()


# G6: lifecycle


def fastload_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("fastload")]


def divide_by_zero(batches):
    for _, labels in batches:
        1 // (0 * int(labels[0]))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["break", "error", "close", "with", "del", "gc"])
def test_g06_nothing_is_left_behind(way, workers):
    loader = fl.PrefetchLoader(numbered_loader(samples=400, num_workers=workers), device="cpu")
    iterator = iter(loader)
    next(iterator)
    assert len(fastload_threads()) == 1
    if way == "break":
        iterator = None
        for _ in loader:
            break
    elif way == "error":
        with pytest.raises(ZeroDivisionError):
            divide_by_zero(iterator)
        iterator = None
    elif way == "close":
        loader.close()
        loader.close()
    elif way == "with":
        with loader:
            next(iterator)
    elif way == "del":
        del iterator
    else:
        cycle = [iterator]
        cycle.append(cycle)
        del iterator, cycle
        gc.collect()
    assert fastload_threads() == []
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_g06_an_error_that_is_kept_keeps_no_thread_and_no_worker(workers):
    loader = fl.PrefetchLoader(numbered_loader(fail_at=9, num_workers=workers), device="cpu")
    _, kept = collect(loader)
    assert kept is not None
    assert fastload_threads() == []
    assert multiprocessing.active_children() == []


def test_g06_a_pass_can_be_shared_by_threads():
    iterator = iter(fl.PrefetchLoader([torch.tensor(number) for number in range(2000)], device="cpu"))
    seen = []
    consumers = [threading.Thread(target=lambda: seen.extend(int(batch) for batch in iterator)) for _ in range(3)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(timeout=60)
    assert sorted(seen) == list(range(2000))


def test_g06_a_closed_pass_has_ended_and_the_loader_has_not():
    loader = fl.PrefetchLoader(numbered_loader(samples=10), device="cpu")
    iterator = iter(loader)
    loader.close()
    assert next(iterator, "end") == "end"
    assert len(list(loader)) == 3


def test_g06_passes_are_independent():
    loader = fl.PrefetchLoader(numbered_loader(samples=10), device="cpu", depth=1)
    pairs = [(one[1].tolist(), other[1].tolist()) for one, other in zip(loader, loader, strict=True)]
    assert pairs == [(labels, labels) for labels in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9])]


def test_g06_persistent_workers_have_one_pass_at_a_time():
    loader = fl.PrefetchLoader(numbered_loader(samples=40, num_workers=2, persistent_workers=True), device="cpu")
    first = iter(loader)
    next(first)
    workers = set(multiprocessing.active_children())
    assert [labels.tolist()[0] for _, labels in loader] == list(range(0, 40, 4))
    assert next(first, "end") == "end"
    assert set(multiprocessing.active_children()) == workers


class Slow(Numbered):
    def __getitem__(self, index):
        time.sleep(0.3)
        return super().__getitem__(index)


def test_g06_no_batch_of_the_next_pass_goes_to_a_slow_end_of_the_last():
    wrapped = DataLoader(Slow(12), batch_size=4, num_workers=1, persistent_workers=True)
    loader = fl.PrefetchLoader(wrapped, device="cpu")
    for _ in loader:
        break
    assert [labels.tolist() for _, labels in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_g06_an_iterator_has_one_pass_as_itself_has():
    loader = fl.PrefetchLoader(iter([torch.tensor(number) for number in range(6)]), device="cpu")
    assert [(int(one), int(other)) for one, other in zip(loader, loader, strict=True)] == [(0, 1), (2, 3), (4, 5)]


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("persistent", [False, True])
def test_g06_workers_may_be_started_in_any_way(context, persistent):
    wrapped = DataLoader(
        TensorDataset(torch.arange(6)),
        batch_size=2,
        num_workers=1,
        multiprocessing_context=context,
        persistent_workers=persistent,
    )
    loader = fl.PrefetchLoader(wrapped, device="cpu")
    for _ in range(2):
        assert [batch.tolist() for (batch,) in loader] == [[0, 1], [2, 3], [4, 5]]


def test_g06_an_endless_loader_can_be_left():
    finished = []

    def endless():
        try:
            for number in itertools.count():
                yield torch.tensor(number)
        finally:
            finished.append(True)

    with fl.PrefetchLoader(endless(), device="cpu") as batches:
        assert [int(batch) for batch in itertools.islice(batches, 5)] == [0, 1, 2, 3, 4]
    del batches
    gc.collect()
    assert finished == [True]


def test_g06_passes_may_be_nested():
    loader = fl.PrefetchLoader(numbered_loader(samples=8), device="cpu")
    assert [[inner[1].tolist()[0] for inner in loader] for _ in loader] == [[0, 4], [0, 4]]


def test_g06_a_loader_whose_iter_has_failed_can_be_used_again():
    class Unlucky:
        tries = 0

        def __iter__(self):
            self.tries += 1
            if self.tries == 1:
                raise OSError("the disk was busy")
            return iter([torch.tensor(7)])

    loader = fl.PrefetchLoader(Unlucky(), device="cpu")
    with pytest.raises(OSError, match="the disk was busy"):
        iter(loader)
    assert [int(batch) for batch in loader] == [7]


def test_g06_a_thread_waiting_for_a_batch_is_woken_by_close():
    release = threading.Event()

    class Stuck:
        def __iter__(self):
            release.wait()
            yield from ()

    loader = fl.PrefetchLoader(Stuck(), device="cpu")
    iterator = iter(loader)
    result = []
    consumer = threading.Thread(target=lambda: result.append(next(iterator, "end")))
    consumer.start()
    loader.close()
    consumer.join(timeout=30)
    release.set()
    assert result == ["end"]


@pytest.mark.parametrize("workers", [0, 2])
def test_g06_the_interpreter_ends_in_the_middle_of_a_pass(workers):
    code = (
        "import fastload as fl; from tests.batches import numbered_loader\n"
        f"iterator = iter(fl.PrefetchLoader(numbered_loader(samples=4000, num_workers={workers})))\n"
        "next(iterator)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_g06_the_interpreter_waits_for_a_batch_that_takes_long():
    code = (
        "import time, torch, fastload as fl\n"
        "def batches():\n"
        "    while True:\n"
        "        end, x = time.time() + 1.5, torch.ones(64, 64)\n"
        "        while time.time() < end: x = torch.tanh(x @ x)\n"
        "        yield x\n"
        "next(iter(fl.PrefetchLoader(batches(), device='cpu')))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.gpu
def test_g06_no_pinned_block_is_left_behind():
    loader = fl.PrefetchLoader(numbered_loader(samples=400), MEAN, STD)
    pinned = []
    for _ in range(5):
        list(loader)
        for _ in loader:
            break
        torch.cuda.synchronize()
        pinned.append(torch.cuda.host_memory_stats()["allocated_bytes.current"])
    assert pinned == pinned[:1] * 5


@pytest.mark.gpu
def test_g06_an_error_that_is_kept_keeps_no_pinned_block():
    def broken(images):
        if images.flatten()[0] == 3:
            raise ValueError("three")
        return images

    def pinned_after_an_error():
        batches = [torch.full((64, 3, 64, 64), number, dtype=torch.uint8) for number in range(5)]
        with pytest.raises(ValueError, match="three") as caught:
            list(fl.PrefetchLoader(batches, transform=broken))
        torch.cuda.synchronize()
        return torch.cuda.host_memory_stats()["allocated_bytes.current"], caught.value

    kept = [pinned_after_an_error() for _ in range(6)]
    assert len({pinned for pinned, _ in kept[1:]}) == 1


class Untouchable:
    """What a worker must not collect."""

    def __init__(self):
        self.owner = os.getpid()

    def __del__(self):
        if os.getpid() != self.owner:
            os.abort()


class Collecting(Numbered):
    def __getitem__(self, index):
        gc.collect()
        return super().__getitem__(index)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_g06_workers_leave_the_garbage_that_they_inherit_alone(device):
    for _ in range(2):
        wrapped = DataLoader(Collecting(8), batch_size=4, num_workers=2)
        for batch in fl.PrefetchLoader(wrapped, device=device):
            cycle = [batch, Untouchable()]
            cycle.append(cycle)
        del batch, cycle


# G7: structure


@dataclasses.dataclass(frozen=True)
class Sample:
    images: torch.Tensor
    names: list


class Movable:
    """An object with a `to` of its own, as batches of graphs and of tokens are."""

    def __init__(self, value, device="cpu"):
        self.value = value
        self.device = torch.device(device)

    def to(self, device):
        return Movable(self.value.to(device), device)


class Names(list):
    pass


def structures():
    image = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    boxes = tv_tensors.BoundingBoxes(torch.ones(1, 4), format="XYXY", canvas_size=(4, 4))
    attributed = Names([torch.ones(1), "a"])
    attributed.source = "here"
    return {
        "tensor": image,
        "tuple": (image, torch.arange(2)),
        "list": [image, [torch.ones(1), [torch.ones(2)]]],
        "named tuple": Pair(image, torch.arange(2)),
        "dict": {"image": image, "id": 7, "name": "cat", "none": None, "raw": b"bytes"},
        "ordered": OrderedDict(b=image, a=torch.ones(1)),
        "default": defaultdict(list, {"x": image}),
        "user dict": UserDict({"x": image}),
        "read-only mapping": types.MappingProxyType({"x": image}),
        "dataclass": Sample(image, ["a", "b"]),
        "tv_tensors": (tv_tensors.Image(image), {"boxes": boxes}),
        "list subclass": attributed,
        "detection": ([image[0], image[1]], [{"boxes": torch.ones(1, 4)}, {"boxes": torch.ones(3, 4)}]),
        "packed": pack_sequence([torch.ones(3), torch.ones(2)]),
        "movable": {"graph": Movable(torch.ones(3))},
        "sparse": torch.eye(3).to_sparse(),
        "zero-size and 0-dimensional": (torch.empty(0, 4), torch.tensor(3.5)),
        "no tensor": ("a", 1, None),
    }


def same(actual, expected, device):
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert actual.device.type == device
        assert actual.dtype == expected.dtype
        assert actual.layout == expected.layout
        assert torch.equal(actual.cpu().to_dense(), expected.to_dense())
    elif isinstance(expected, PackedSequence):
        same(actual.data, expected.data, device)
        same(actual.batch_sizes, expected.batch_sizes, "cpu")
    elif isinstance(expected, Movable):
        same(actual.value, expected.value, device)
    elif isinstance(expected, Sample):
        same(vars(actual), vars(expected), device)
    elif hasattr(expected, "items"):
        assert list(actual) == list(expected)
        for key in expected:
            same(actual[key], expected[key], device)
    elif isinstance(expected, list | tuple):
        for one, other in zip(actual, expected, strict=True):
            same(one, other, device)
        if isinstance(expected, Names):
            assert actual.source == expected.source
    else:
        assert actual is expected


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", structures())
def test_g07_structure_and_types_are_kept(name, device):
    batch = structures()[name]
    (moved,) = fl.PrefetchLoader([batch], device=device)
    same(moved, batch, device)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_g07_tensor_dict(device):
    tensordict = pytest.importorskip("tensordict")
    batch = tensordict.TensorDict({"x": torch.ones(2, 3)}, batch_size=[2])
    (moved,) = fl.PrefetchLoader([batch], device=device)
    assert type(moved) is type(batch)
    assert moved["x"].device.type == device
    assert torch.equal(moved["x"].cpu(), batch["x"])


def test_g07_only_images_are_transformed():
    image = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    batches = {
        "first plain tensor": (image, torch.ones(2, 3, 4, 4, dtype=torch.uint8)),
        "typed": (torch.ones(2, 3, 4, 4, dtype=torch.uint8), tv_tensors.Image(image)),
    }
    (first,) = fl.PrefetchLoader([batches["first plain tensor"]], MEAN, STD, device="cpu")
    assert [tensor.dtype for tensor in first] == [torch.float32, torch.uint8]
    (typed,) = fl.PrefetchLoader([batches["typed"]], MEAN, STD, device="cpu")
    assert [tensor.dtype for tensor in typed] == [torch.uint8, torch.float32]
    assert type(typed[1]) is tv_tensors.Image


def test_g07_every_image_of_a_list_is_transformed():
    images = [torch.zeros(3, 4, 5, dtype=torch.uint8), torch.zeros(3, 6, 7, dtype=torch.uint8)]
    targets = [{"boxes": torch.ones(1, 4)}, {"boxes": torch.ones(2, 4)}]
    ((moved, kept),) = fl.PrefetchLoader([(images, targets)], MEAN, STD, device="cpu")
    assert [(image.dtype, tuple(image.shape)) for image in moved] == [
        (torch.float32, (3, 4, 5)),
        (torch.float32, (3, 6, 7)),
    ]
    assert kept[1]["boxes"].tolist() == targets[1]["boxes"].tolist()


def test_g07_a_mask_beside_a_single_image_is_no_image():
    image, mask = torch.zeros(3, 4, 5, dtype=torch.uint8), torch.zeros(3, 4, 5, dtype=torch.uint8)
    (pair,) = fl.PrefetchLoader([(image, mask)], MEAN, STD, device="cpu")
    assert [tensor.dtype for tensor in pair] == [torch.float32, torch.uint8]
    (fields,) = fl.PrefetchLoader([{"image": image, "mask": mask}], MEAN, STD, device="cpu")
    assert fields["mask"].dtype == torch.uint8
    (lists,) = fl.PrefetchLoader([([image, image], [mask[:1], mask[:1]])], MEAN, STD, device="cpu")
    assert [tensor.dtype for part in lists for tensor in part] == 2 * [torch.float32] + 2 * [torch.uint8]


IMAGE = torch.zeros(3, 4, 5, dtype=torch.uint8)


@pytest.mark.parametrize("sample", [IMAGE, (IMAGE, {"boxes": torch.ones(1, 4)}), {"image": IMAGE}, (IMAGE, IMAGE)])
def test_g07_a_list_of_samples_is_refused_rather_than_half_transformed(sample):
    with pytest.raises(TypeError, match="looks like a list of samples"):
        list(fl.PrefetchLoader([[sample, sample]], MEAN, STD, device="cpu"))


def test_g07_lists_of_one_image_are_like_longer_ones():
    pairs = [([IMAGE] * count, [IMAGE] * count) for count in (2, 1)]
    for images, targets in fl.PrefetchLoader(pairs, MEAN, STD, device="cpu"):
        assert {image.dtype for image in images} == {torch.float32}
        assert {target.dtype for target in targets} == {torch.uint8}


def test_g07_an_odd_image_of_a_list_is_refused():
    with pytest.raises(TypeError, match="mean and std have 3 channels"):
        list(fl.PrefetchLoader([([IMAGE, IMAGE[:1]], ["a", "b"])], MEAN, STD, device="cpu"))


class Attributes(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


class Stored(MutableMapping):
    def __init__(self, **items):
        self.items_of = dict(items)

    def __getitem__(self, key):
        return self.items_of[key]

    def __setitem__(self, key, value):
        self.items_of[key] = value

    def __delitem__(self, key):
        del self.items_of[key]

    def __iter__(self):
        return iter(self.items_of)

    def __len__(self):
        return len(self.items_of)


class Triple(tuple):
    def __new__(cls, a, b, c):
        return super().__new__(cls, (a, b, c))


@pytest.mark.parametrize("make", [Attributes, Stored])
def test_g07_the_loaders_own_mapping_is_left_as_it_was(make):
    batch = make(image=IMAGE[None], name="cat")
    (moved,) = fl.PrefetchLoader([batch], MEAN, STD, device="cpu")
    assert type(moved) is make
    assert (moved["image"].dtype, batch["image"].dtype) == (torch.float32, torch.uint8)
    if make is Attributes:
        assert moved.image is moved["image"]


def test_g07_a_tuple_with_a_constructor_of_its_own():
    (moved,) = fl.PrefetchLoader([Triple(IMAGE[None], 1, "a")], MEAN, STD, device="cpu")
    assert type(moved) is Triple
    assert moved[0].dtype == torch.float32


# G8: transparency


def test_g08_answers_as_the_wrapped_loader():
    wrapped = numbered_loader(samples=10)
    loader = fl.PrefetchLoader(wrapped, device="cpu")
    assert len(loader) == len(wrapped) == 3
    for name in ("dataset", "sampler", "batch_sampler", "batch_size", "num_workers", "drop_last", "collate_fn"):
        assert getattr(loader, name) is getattr(wrapped, name)
    with pytest.raises(AttributeError, match="no_such_thing"):
        loader.no_such_thing  # noqa: B018


def test_g08_a_loader_without_length_has_none():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    loader = fl.PrefetchLoader(DataLoader(Stream()), device="cpu")
    with pytest.raises(TypeError):
        len(loader)
    assert len(list(loader)) == 3


def test_g08_set_epoch_reaches_the_sampler():
    sampler = DistributedSampler(Numbered(), num_replicas=2, rank=0)
    loader = fl.PrefetchLoader(DataLoader(Numbered(), batch_size=4, sampler=sampler), device="cpu")
    loader.set_epoch(5)
    assert sampler.epoch == 5
    expected = [labels.tolist() for _, labels in loader.loader]
    assert [labels.tolist() for _, labels in loader] == expected


# G9, as far as one flip can show it


@pytest.mark.parametrize("batch_size", [3, 8])
def test_g09_augmentation_depends_on_seed_epoch_and_place_alone(batch_size):
    ramp = torch.arange(8, dtype=torch.uint8).expand(24, 3, 2, 8)

    def flipped(depth=2, seed=0, epoch=0):
        loader = fl.PrefetchLoader(
            ramp.split(batch_size), transform=T.RandomHorizontalFlip(), device="cpu", depth=depth, seed=seed
        )
        loader.set_epoch(epoch)
        return torch.cat([images[:, 0, 0, 0] != 0 for images in loader])

    key = T.Key(seed=0, epoch=0)
    assert torch.equal(flipped(), T.RandomHorizontalFlip().sample(torch.tensor([[2, 8]] * 24), key))
    assert torch.equal(flipped(depth=5), flipped())
    assert not torch.equal(flipped(seed=1), flipped())
    assert not torch.equal(flipped(epoch=1), flipped())


class Ramps(torch.utils.data.Dataset):
    """Sample ``i`` is an image of its own."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8, generator=generator), index


AUGMENT = [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.Normalize(MEAN, STD)]


def augmented(device="cpu", *, depth=2, workers=0, ranks=1):
    """Each sample's augmented image, whichever rank it came to."""
    found = {}
    for rank in range(ranks):
        sampler = DistributedSampler(Ramps(), ranks, rank, shuffle=True, seed=3)
        wrapped = DataLoader(Ramps(), batch_size=4, sampler=sampler, num_workers=workers)
        loader = fl.PrefetchLoader(wrapped, transform=T.Compose(AUGMENT), device=device, depth=depth, seed=1)
        for images, labels in loader:
            found |= dict(zip(labels.tolist(), images.cpu(), strict=True))
    return torch.stack([found[index] for index in range(len(Ramps()))])


@pytest.mark.parametrize("setting", [{"depth": 1}, {"depth": 4}, {"workers": 8}, {"ranks": 4}])
def test_g09_a_sample_is_augmented_alike_however_it_comes(setting):
    assert torch.equal(augmented(**setting), augmented())


@pytest.mark.gpu
def test_g09_a_sample_is_augmented_alike_on_cpu_and_gpu():
    # Resampling is right to a thousandth of full scale, which a factor of contrast and a small std make larger.
    largest = 1.4**3 * 1e-3 / min(STD)
    assert (augmented("cuda") - augmented("cpu")).abs().max() <= largest


# G10: resume; tests/resume/test_lives.py kills processes, tests/resume/test_resume.py has it with many samplers


class RampStream(IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        return (Ramps()[index] for index in range(worker.id if worker else 0, 32, worker.num_workers if worker else 1))


def resumable(dataset, workers):
    shuffle = {} if dataset is RampStream else {"shuffle": True}
    wrapped = DataLoader(dataset(), batch_size=4, num_workers=workers, **shuffle)
    return fl.PrefetchLoader(wrapped, transform=T.Compose(AUGMENT), device="cpu", depth=4, seed=1)


def epochs_to_the_third(loader):
    while loader.epoch < 3:
        for images, labels in loader:
            yield labels.tolist(), images


@pytest.mark.parametrize("dataset", [Ramps, RampStream])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("place", [1, 8, 13])
def test_g10_a_new_loader_goes_on_after_the_batch_that_was_yielded_last(dataset, workers, place, tmp_path):
    torch.manual_seed(3)
    expected = []
    loader = resumable(dataset, workers)
    for batch in epochs_to_the_third(loader):
        expected.append(batch)
        if len(expected) == place:
            torch.save(loader.state_dict(), tmp_path / "state.pt")
    torch.manual_seed(4)
    resumed = resumable(dataset, workers)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt"))
    actual = list(epochs_to_the_third(resumed))
    assert [labels for labels, _ in actual] == [labels for labels, _ in expected[place:]]
    assert all(torch.equal(images, other) for (_, images), (_, other) in zip(actual, expected[place:], strict=True))


# G12: no hidden sync


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_g12_the_loop_runs_with_synchronisation_forbidden(workers):
    wrapped = numbered_loader(samples=64, num_workers=workers, pin_memory=bool(workers))
    flip_and_normalize = T.Compose([T.RandomHorizontalFlip(), T.Normalize(MEAN, STD, dtype=torch.bfloat16)])
    loader = fl.PrefetchLoader(wrapped, transform=flip_and_normalize)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def train():
        for images, labels in loader:
            with torch.autocast("cuda", torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    train()  # kernels are compiled and loaded
    torch.cuda.set_sync_debug_mode("error")
    try:
        train()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# What is not a guarantee, and yet expected


def test_values_normalised_once_already_are_remarked_upon_once():
    normalised = [(torch.randn(2, 3, 4, 4), torch.zeros(2)) for _ in range(3)]
    with pytest.warns(UserWarning, match=r"torch.float32 with values from -.*normalised already") as caught:
        list(fl.PrefetchLoader(normalised, MEAN, STD, device="cpu"))
    assert len(caught) == 1


def test_floats_from_0_to_1_with_a_mean_in_0_to_255_are_remarked_upon():
    scaled = [(torch.rand(2, 3, 4, 4), torch.zeros(2))]
    with pytest.warns(UserWarning, match=r"are given for values from 0 to 255"):
        list(fl.PrefetchLoader(scaled, [123.7, 116.3, 103.5], [58.4, 57.1, 57.4], device="cpu"))


def test_fitting_values_pass_in_silence():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(fl.PrefetchLoader([torch.rand(2, 3, 4, 4)], MEAN, STD, device="cpu"))
        list(fl.PrefetchLoader([torch.zeros(2, 3, 4, 4, dtype=torch.uint8)], [123.7] * 3, [58.4] * 3, device="cpu"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loader": 7}, "loader must be an iterable of batches.*got int"),
        ({"depth": 0}, "depth must be an int of at least 1.*got 0"),
        ({"depth": 1.5}, "depth must be an int of at least 1.*got 1.5"),
        ({"seed": -1}, "seed must be an int from 0.*got -1"),
        ({"mean": MEAN}, "mean and std go together"),
        ({"dtype": torch.bfloat16}, "dtype and memory_format are those of normalised images"),
        ({"transform": 3}, "transform must be callable.*got 3"),
        ({"device": "xpu"}, "device must be one that this machine has.*got 'xpu'"),
        ({"mean": MEAN, "std": STD, "dtype": torch.int8}, "dtype must be one of.*got torch.int8"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_got(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        fl.PrefetchLoader(**{"loader": [], **arguments})


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.zeros(4, 3, 8, 8, dtype=torch.int32), "images must be uint8.*got torch.int32"),
        (torch.zeros(4, 2, 8, 8, dtype=torch.uint8), r"mean and std have 3 channels.*\(4, 2, 8, 8\)"),
        ((torch.arange(4), torch.zeros(4, 3, 8, 8)), r"the first tensor.*batch\[0\]: Tensor torch.int64 \(4,\)"),
        (["a", 7], "the batch holds no image"),
    ],
)
def test_batches_without_fitting_images_are_refused_with_what_was_got(batch, message):
    with pytest.raises(TypeError, match=message):
        list(fl.PrefetchLoader([batch], MEAN, STD, device="cpu"))


def test_boxes_go_where_their_image_goes():
    boxes = tv_tensors.BoundingBoxes([[0, 1, 3, 2]], format="XYXY", canvas_size=(4, 4))
    batch = ([torch.zeros(3, 4, 4, dtype=torch.uint8)], [{"boxes": boxes, "labels": torch.tensor([7])}])
    ((_, targets),) = fl.PrefetchLoader([batch], transform=T.RandomHorizontalFlip(1.0), device="cpu")
    assert targets[0]["boxes"].tolist() == [[1, 1, 4, 2]]
    assert targets[0]["labels"].tolist() == [7]
