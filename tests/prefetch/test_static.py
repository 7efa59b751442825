"""``static=True``: batches at fixed addresses, a short one by policy, and memory poisoned when it is let go."""

import time
from contextlib import nullcontext
from queue import SimpleQueue

import pytest
import torch
from torch.utils.data import DataLoader, default_collate
from torchvision import tv_tensors

import fastload as fl
from fastload import transforms as T
from fastload.prefetch import slots
from tests.batches import NumberedBatches, numbered_loader
from tests.files import jpeg

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("depth", [1, 3])
def test_batches_lie_where_the_one_depth_and_two_before_lay(device, depth):
    loader = fl.PrefetchLoader(numbered_loader(samples=60), device=device, depth=depth, static=True)
    addresses = [[tensor.data_ptr() for tensor in batch] for batch in loader]
    places = depth + 2
    assert len(addresses) == 15
    assert addresses[places:] == addresses[:-places]
    assert len({tuple(each) for each in addresses}) == places
    again = [[tensor.data_ptr() for tensor in batch] for batch in loader]
    assert {tuple(each) for each in again} == {tuple(each) for each in addresses}


@pytest.mark.parametrize("device", DEVICES)
def test_values_are_those_of_any_other_pass(device):
    transform = T.Compose(
        [T.RandomHorizontalFlip(), T.Normalize([0.4] * 3, [0.2] * 3, memory_format=torch.channels_last)]
    )
    loaders = [
        fl.PrefetchLoader(numbered_loader(samples=30), transform=transform, device=device, static=static)
        for static in (False, True)
    ]
    for (images, labels), (static_images, static_labels) in zip(*loaders, strict=True):
        assert torch.equal(static_images, images)
        assert static_images.stride() == images.stride()
        assert torch.equal(static_labels, labels)


@pytest.mark.parametrize("device", DEVICES)
def test_structure_and_types_are_kept(device):
    boxes = tv_tensors.BoundingBoxes(torch.rand(2, 4), format="XYWH", canvas_size=(4, 4))
    batches = [{"image": torch.rand(2, 3, 4, 4), "names": ["a", str(n)], "boxes": boxes * (n + 1)} for n in range(6)]
    for moved, batch in zip(fl.PrefetchLoader(batches, device=device, static=True), batches, strict=True):
        assert moved["names"] is batch["names"]
        assert type(moved["boxes"]) is type(batch["boxes"])
        assert vars(moved["boxes"]) == vars(batch["boxes"])
        assert torch.equal(moved["boxes"].cpu(), batch["boxes"])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("static", [True, "dynamic"])
def test_a_short_batch_comes_in_memory_of_its_own(device, static):
    loader = fl.PrefetchLoader(numbered_loader(samples=22), device=device, static=static)
    seen = [(labels.tolist(), labels.data_ptr()) for _, labels in loader]
    assert seen[-1][0] == [20, 21]
    assert seen[-1][1] not in [address for _, address in seen[:-1]]


@pytest.mark.parametrize("device", DEVICES)
def test_a_short_batch_is_dropped_if_that_is_asked_for(device):
    loader = fl.PrefetchLoader(numbered_loader(samples=22), device=device, static="drop")
    for _ in range(2):
        assert [labels.tolist()[0] for _, labels in loader] == [0, 4, 8, 12, 16]


@pytest.mark.parametrize("device", DEVICES)
def test_a_short_batch_is_padded_if_that_is_asked_for(device):
    loader = fl.PrefetchLoader(numbered_loader(samples=22), device=device, static="pad", depth=1)
    seen = []
    for (images, labels), mask in loader:
        assert images[mask][:, 0, 0, 0].tolist() == labels[mask].tolist()
        assert not images[~mask].any()
        seen.append((labels.tolist(), mask.tolist(), mask.data_ptr()))
    assert [labels for labels, _, _ in seen[:-1]] == [[n, n + 1, n + 2, n + 3] for n in range(0, 20, 4)]
    assert all(all(mask) for _, mask, _ in seen[:-1])
    assert seen[-1][:2] == ([20, 21, 0, 0], [True, True, False, False])
    assert seen[-1][2] == seen[-4][2]


WHAT_BECOMES_OF_A_SHORT_BATCH = {"dynamic": [2], "drop": [], "pad": [4]}  # of 2 samples, where a whole one has 4


def lengths(batches, short):
    return [len(batch[0][0] if short == "pad" else batch[0]) for batch in batches]


@pytest.mark.parametrize("short", WHAT_BECOMES_OF_A_SHORT_BATCH)
@pytest.mark.parametrize("transform", [None, T.RandomHorizontalFlip()])
def test_a_run_resumed_at_a_short_batch_goes_on_with_whole_ones(short, transform):
    def loader():
        return fl.PrefetchLoader(numbered_loader(samples=10), transform=transform, device="cpu", static=short)

    interrupted = loader()
    batches = iter(interrupted)
    next(batches), next(batches)
    resumed = loader()
    resumed.load_state_dict(interrupted.state_dict())
    last = WHAT_BECOMES_OF_A_SHORT_BATCH[short]
    assert lengths(resumed, short) == last
    assert lengths(resumed, short) == [4, 4, *last]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("short", WHAT_BECOMES_OF_A_SHORT_BATCH)
def test_a_first_batch_of_which_samples_were_skipped_is_a_short_one(short, ahead):
    good = jpeg(8, 8)
    samples = [(b"", 0), (good, 1), (good, 2), (b"", 3), *((good, label) for label in range(4, 12))]
    batches = DataLoader(samples, batch_size=4, collate_fn=fl.collate)
    transform = T.Compose([T.DecodeJpeg(on_error="skip"), T.Resize((8, 8))])
    loader = fl.PrefetchLoader(batches if ahead else list(batches), transform=transform, device="cpu", static=short)
    with pytest.warns(UserWarning, match="left out"):
        assert lengths(loader, short) == [*WHAT_BECOMES_OF_A_SHORT_BATCH[short], 4, 4]


def test_a_first_batch_that_is_short_is_padded_in_the_layout_of_a_whole_one():
    normalize = T.Normalize([0.0] * 3, [1.0] * 3, memory_format=torch.channels_last)
    loader = fl.PrefetchLoader(numbered_loader(samples=10), transform=normalize, device="cpu", static="pad", depth=1)
    loader.skip(2)
    (images, labels), mask = next(iter(loader))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.tolist() == [8, 9, 0, 0]
    assert mask.tolist() == [True, True, False, False]
    assert not images[~mask].any()


@pytest.mark.parametrize("static", [True, "drop", "pad"])
def test_the_only_batch_of_an_epoch_is_a_whole_one(static):
    addresses = [
        (batch[0] if static == "pad" else batch)[1].data_ptr()
        for loader in [fl.PrefetchLoader(numbered_loader(samples=3), device="cpu", static=static)]
        for _ in range(8)
        for batch in loader
    ]
    assert addresses[4:] == addresses[:4]


@pytest.mark.parametrize("static", [True, "drop", "pad"])
def test_a_collate_function_may_make_another_number_of_samples(static):
    def pairs(samples):
        return default_collate(samples[::2])

    loader = fl.PrefetchLoader(numbered_loader(samples=12, collate_fn=pairs), device="cpu", static=static)
    loader.skip(1)
    assert lengths(loader, static) == [2, 2]


@pytest.mark.parametrize("static", [True, "drop", "pad"])
def test_a_batch_with_more_samples_than_the_first_is_refused_with_both_numbers(static):
    batches = iter(fl.PrefetchLoader([torch.zeros(3, 2), torch.zeros(4, 2)], device="cpu", static=static))
    next(batches)
    with pytest.raises(TypeError, match=r"first batch had 3 samples, .* this one has 4; let the first be a whole"):
        next(batches)


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_that_was_let_go_is_poisoned_if_that_is_asked_for(device):
    scale = T.Normalize([0.0] * 3, [1 / 255] * 3)
    as_many_as_places = numbered_loader(samples=16)
    iterator = iter(fl.PrefetchLoader(as_many_as_places, transform=scale, device=device, static=fl.Static(poison=True)))
    kept_images, kept_labels = next(iterator)
    next(iterator)
    assert kept_labels.tolist() == [0, 1, 2, 3]
    images, labels = next(iterator)
    assert kept_images.isnan().all()
    assert kept_labels.tolist() == [-1] * 4
    assert labels.tolist() == [8, 9, 10, 11]
    assert images[:, 0, 0, 0].tolist() == [8, 9, 10, 11]


KEPT = {
    "nothing": lambda _: None,
    "itself": lambda batch: batch[1],
    "a view": lambda batch: batch[0][1, 0],
    "its graph": lambda batch: batch[0] * torch.ones((), requires_grad=True, device=batch[0].device),
    "a clone": lambda batch: batch[0].clone(),
    "a result": lambda batch: batch[0].sum(),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kept", KEPT)
def test_a_batch_that_is_held_too_long_is_refused_if_that_is_asked_for(kept, device):
    loader = fl.PrefetchLoader(
        numbered_loader(), transform=T.Normalize([0.0] * 3, [1.0] * 3), device=device, static=fl.Static(refuse=True)
    )
    names = {"itself": r"batch\[1\]", "a view": r"batch\[0\]", "its graph": r"batch\[0\]"}
    for _ in range(2):
        held = []
        with pytest.raises(RuntimeError, match=f"^{names[kept]} of the .* clone") if kept in names else nullcontext():
            for number, batch in enumerate(loader):
                assert number < 2 or kept not in names
                held.append(KEPT[kept](batch))


@pytest.mark.parametrize("device", DEVICES)
def test_a_place_that_is_filled_at_once_is_not_taken_for_one_that_is_held(device, monkeypatch):
    class Handing(SimpleQueue):
        def put(self, slot):
            super().put(slot)
            time.sleep(0.02)  # a thread that waits for it goes on before the one that put it

    monkeypatch.setattr(slots, "SimpleQueue", Handing)
    loader = fl.PrefetchLoader(numbered_loader(samples=64), depth=1, device=device, static=fl.Static(refuse=True))
    assert sum(1 for _ in loader) == 16


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_consumer_does_to_a_batch_stays_with_that_batch(device):
    for number, images in enumerate(fl.PrefetchLoader([torch.ones(2, 3)] * 12, device=device, static=True)):
        assert not images.requires_grad
        (images.requires_grad_() * 2).sum().backward()
        assert images.grad.tolist() == [[2.0] * 3] * 2, number


class Counting:
    """Batches of ever new numbers, epoch after epoch."""

    def __init__(self):
        self.produced = 0

    def __iter__(self):
        for _ in range(12):
            self.produced += 1
            yield torch.full((2,), self.produced)

    def settle(self):
        """Wait until the background thread has gone as far as it can."""
        before = None
        while before != self.produced:
            before = self.produced
            time.sleep(0.05)


@pytest.mark.parametrize("break_after", [1, 2, 5])
def test_the_batch_in_hand_and_the_one_before_stay_whole_across_passes(break_after):
    counting = Counting()
    loader = fl.PrefetchLoader(counting, device="cpu", static=fl.Static(poison=True))
    held = []
    for _ in range(3):
        for number, batch in enumerate(loader, 1):
            held = [*held[-1:], (batch, batch.tolist())]
            counting.settle()
            for tensor, values in held:
                assert tensor.tolist() == values
            if number == break_after:
                break
    numbers = []
    for batch in loader:
        counting.settle()
        numbers.append(int(batch[0]))
    assert numbers == list(range(counting.produced - 11, counting.produced + 1))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            (torch.zeros(4, 3, 8, 9), torch.zeros(4)),
            r"batch\[0\] is .*8, 9\) and was .*8, 8\) in the first",
        ),
        ((torch.zeros(4, 3, 8, 8), torch.zeros(4).long()), r"batch\[1\] is torch.int64 \(4,\) and was torch.float32"),
        ((torch.zeros(4, 3, 8, 8), torch.zeros(3)), r"batch\[1\] is .*\(3,\) and was .*\(4,\)"),
        ((torch.zeros(5, 3, 8, 8), torch.zeros(5)), r"batch\[0\] is .*\(5, 3, 8, 8\) and was"),
        ((torch.zeros(4, 3, 8, 8),), r"batch\[1\] is not there and was torch.float32 \(4,\)"),
        ((torch.zeros(4, 3, 8, 8), torch.zeros(4), torch.zeros(4)), r"batch\[2\] is .* and was not there"),
        ((torch.zeros(4, 3, 8, 8), torch.eye(4).to_sparse()), r"dense tensors; batch\[1\] is a Tensor of layout"),
    ],
)
@pytest.mark.parametrize("static", [True, "drop", "pad"])
def test_another_structure_in_mid_epoch_is_refused_with_what_was_got(second, message, static):
    first = (torch.zeros(4, 3, 8, 8), torch.zeros(4))
    iterator = iter(fl.PrefetchLoader([first, second], device="cpu", static=static))
    next(iterator)
    with pytest.raises(TypeError, match=message):
        next(iterator)


@pytest.mark.parametrize("static", ["padded", "", None, 3])
def test_an_unknown_policy_is_refused_with_those_that_there_are(static):
    with pytest.raises(ValueError, match=r"static must be .*dynamic.*drop.*pad.*got"):
        fl.PrefetchLoader([], device="cpu", static=static)


@pytest.mark.gpu
@pytest.mark.parametrize("behind", [2, 5, 20])
def test_no_batch_is_overwritten_under_a_late_device(behind):
    wrong = torch.zeros(200, dtype=torch.bool, device="cuda")
    ends = []
    for number, (images, labels) in enumerate(fl.PrefetchLoader(NumberedBatches(200), depth=2, static=True)):
        torch.cuda._sleep(1_000_000)
        wrong[number] = (images != number).any() | (labels != number).any()
        ends.append(torch.cuda.Event())
        ends[-1].record()
        if number >= behind:
            ends[number - behind].synchronize()
    assert not wrong.any()


@pytest.mark.gpu
def test_a_graph_captured_over_each_place_replays_on_every_batch():
    graphs, totals = {}, []
    for images, _ in fl.PrefetchLoader(NumberedBatches(40), transform=lambda images: images.float(), static="drop"):
        if images.data_ptr() not in graphs:
            images.sum()  # what is done once only is done before the capture
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                total = images.sum()
            graphs[images.data_ptr()] = graph, total
        graph, total = graphs[images.data_ptr()]
        graph.replay()
        totals.append(total.clone())
    assert len(graphs) == 5  # depth + 2 places
    assert [int(total) for total in totals] == [number * images.numel() for number in range(40)]
