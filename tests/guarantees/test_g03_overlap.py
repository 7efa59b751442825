"""G3: Later batches are prepared while the consumer works."""

import threading

import pytest
import torch

import fastload as fl
from tests.batches import NumberedBatches, numbered_loader
from tests.guarantees.shared import HALF_A_MILLISECOND


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
