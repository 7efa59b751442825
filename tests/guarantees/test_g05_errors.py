"""G5: A failure is raised at its batch, with its own traceback."""

import gc
import os
import signal
import time
import traceback
import weakref

import pytest
import torch
from torch.utils.data import DataLoader

import fastload as fl
from tests.batches import Numbered, numbered_loader
from tests.guarantees.shared import collect


@pytest.mark.parametrize("workers", [0, 2])
def test_g05_an_error_of_the_dataset_arrives_at_its_batch(workers):
    loader = fl.PrefetchLoader(numbered_loader(fail_at=9, num_workers=workers), device="cpu", depth=8)
    labels, error = collect(loader)
    assert labels == list(range(8))
    assert isinstance(error, ValueError)
    assert "sample is broken" in str(error)
    assert collect(loader)[0] == list(range(8))  # and the loader can be used again


@pytest.mark.parametrize("workers", [0, 2])
def test_g05_a_stop_iteration_of_a_sample_does_not_end_the_epoch_in_silence(workers):
    wrapped = numbered_loader(fail_at=9, error=StopIteration("sample is broken"), num_workers=workers)
    labels, error = collect(fl.PrefetchLoader(wrapped, device="cpu"))
    assert labels == list(range(8))
    assert isinstance(error, RuntimeError)
    assert "raised StopIteration" in str(error)
    assert "__getitem__" in "".join(traceback.format_exception(error))


def collate_that_stops(samples):
    raise StopIteration(samples)


@pytest.mark.parametrize("workers", [0, 2])
def test_g05_a_stop_iteration_of_the_collate_function_is_an_error(workers):
    with pytest.raises(RuntimeError, match="collate function raised StopIteration"):
        list(fl.PrefetchLoader(numbered_loader(collate_fn=collate_that_stops, num_workers=workers), device="cpu"))


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
