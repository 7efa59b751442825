"""The verdict names the fault on a GPU: loaders and loops that really run there, each with one fault."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import datasets
from torchvision.transforms import v2

import fastload as fl
from fastload.environment import cores
from fastload.report.verdict import Bound, Cause
from tests.files import jpeg

pytestmark = pytest.mark.gpu

CYCLES = 1_900_000  # of an H100 or H200 in a millisecond, roughly
BATCH, SIDE = 256, 224
BATCHES = 40
MEAN, STD = (0.5,) * 3, (0.25,) * 3


def busy(milliseconds):
    """Keep the GPU busy for so long, without using the host."""
    torch.cuda._sleep(int(milliseconds * CYCLES))


def batch_of(dtype=torch.uint8):
    return torch.ones(BATCH, 3, SIDE, SIDE).to(dtype)


def verdict_on(loader, step, **settings):
    """What the report says of a loop that does ``step`` with each batch."""
    with fl.PrefetchLoader(loader, **settings) as prefetching:
        for batch in prefetching:
            step(batch)
        torch.cuda.synchronize()
        return prefetching.report(show=False).verdict


def test_nothing_is_wrong_where_the_model_takes_longest():
    verdict = verdict_on([batch_of().pin_memory()] * BATCHES, lambda _: busy(20), mean=MEAN, std=STD)
    assert (verdict.bound, verdict.cause) == (Bound.COMPUTE, Cause.NONE), verdict.why
    assert not verdict.changes


def test_floats_fill_the_bus():
    verdict = verdict_on([batch_of(torch.float32).pin_memory()] * BATCHES, lambda _: busy(0.5))
    assert (verdict.bound, verdict.cause) == (Bound.COPY, Cause.FLOAT_BATCHES), verdict.why


class Ready(Dataset):
    """Whole batches that cost their workers next to nothing."""

    def __init__(self):
        self.batch = batch_of()

    def __len__(self):
        return 4 * BATCHES

    def __getitem__(self, index):
        return self.batch


def test_batches_that_are_not_pinned_are_named():
    loader = DataLoader(Ready(), batch_size=None, num_workers=max(2, cores() - 2))
    verdict = verdict_on(loader, lambda _: busy(0.5))
    assert verdict.cause is Cause.UNPINNED, verdict.why


def test_a_transform_too_heavy_for_the_gpu_is_named():
    def heavy(images):
        busy(20)
        return images

    verdict = verdict_on([batch_of().pin_memory()] * BATCHES, lambda _: busy(5), transform=heavy)
    assert (verdict.bound, verdict.cause, verdict.stage) == (Bound.INPUT, Cause.HEAVY_TRANSFORM, "transform"), (
        verdict.why
    )


def test_a_sync_in_the_loop_is_found_at_its_line():
    def step(batch):
        busy(10)
        batch[0, 0, 0, 0].item()

    verdict = verdict_on([batch_of().pin_memory()] * BATCHES, step)
    assert (verdict.bound, verdict.cause) == (Bound.HOST, Cause.HIDDEN_SYNC), verdict.why
    assert "batch[0, 0, 0, 0].item()" in verdict.changes[0]


def test_a_host_too_slow_for_its_launches_is_named():
    value = torch.zeros(1, device="cuda")

    def step(_):
        for _ in range(3000):
            value.add_(1)

    verdict = verdict_on([batch_of().pin_memory()] * BATCHES, step)
    assert (verdict.bound, verdict.cause) == (Bound.HOST, Cause.SLOW_LAUNCHES), verdict.why


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A folder of classes, with JPEGs of the size of a photograph."""
    root = tmp_path_factory.mktemp("photographs")
    for number in range(64):
        folder = root / f"class-{number % 4}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(jpeg(375, 500, seed=number, quality=90))
    return root


def test_decoding_in_the_workers_could_move_to_the_gpu(photographs):
    steps = [v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    dataset = datasets.ImageFolder(photographs, v2.Compose([*steps, v2.Normalize(MEAN, STD)]))
    sampler = RandomSampler(dataset, replacement=True, num_samples=32 * 4 * BATCHES)
    loader = DataLoader(dataset, 32, sampler=sampler, num_workers=cores(), pin_memory=True)
    verdict = verdict_on(loader, lambda _: busy(1))
    assert (verdict.bound, verdict.cause, verdict.stage) == (Bound.INPUT, Cause.DECODE_IN_WORKERS, "load"), verdict.why
    assert "fl.offload(loader)" in verdict.changes[0]
