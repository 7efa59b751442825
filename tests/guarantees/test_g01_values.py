"""G1: Values are those of the reference transform, however far the host runs ahead."""

import pytest
import torch
from torchvision.models import resnet18

import fastload as fl
from fastload import transforms as T
from tests.batches import ClassicPrefetcher, NumberedBatches, numbered_loader
from tests.guarantees.shared import HALF_A_MILLISECOND, MEAN, STD


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
            torch.cuda._sleep(4 * HALF_A_MILLISECOND)  # longer than hosts need for a batch: it is late
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
