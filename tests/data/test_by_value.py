"""Small tensors of a worker's batch come in its message, and are what they were."""

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.tv_tensors import BoundingBoxes, Mask

import fastload as fl
from fastload.data.by_value import SMALL, sending_by_value
from tests.files import jpeg

FILE = jpeg(20, 30)


def batch_of(fields, collate_fn=fl.collate, **options):
    """The only batch of two samples, each a file and these fields, from a worker."""
    loader = DataLoader([(FILE, *fields)] * 2, batch_size=2, num_workers=1, collate_fn=collate_fn, **options)
    with sending_by_value(loader):
        batches = iter(loader)
    assert loader.collate_fn is collate_fn
    return next(batches)


@pytest.mark.parametrize(
    "label",
    [
        3,
        0.5,
        torch.tensor([1, 2, 3], dtype=torch.int32),
        torch.ones(2, dtype=torch.bool),
        torch.zeros(0, 4),
        torch.arange(6.0).view(2, 3).t(),
    ],
)
def test_small_tensors_come_as_they_are_and_not_in_shared_memory(label):
    _, labels = batch_of([label])
    expected = torch.utils.data.default_collate([label] * 2)
    assert type(labels) is torch.Tensor
    assert labels.dtype == expected.dtype
    assert torch.equal(labels, expected)
    assert not labels.is_shared()
    labels.fill_(1)  # it is memory of one's own


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_they_do_from_workers_that_are_started_anew(method):
    _, labels = batch_of([7], multiprocessing_context=method)
    assert labels.tolist() == [7, 7]
    assert not labels.is_shared()


@pytest.mark.parametrize(
    "label",
    [
        torch.zeros(SMALL // 4),  # two of them are larger than SMALL
        torch.ones(2, dtype=torch.bfloat16),  # which NumPy does not have
    ],
)
def test_others_come_as_pytorch_sends_them(label):
    _, labels = batch_of([label])
    assert torch.equal(labels, torch.stack([label] * 2))
    assert labels.is_shared()


def test_targets_keep_their_types_and_attributes():
    boxes = BoundingBoxes(torch.tensor([[0, 0, 4, 5]]), format="XYXY", canvas_size=(20, 30))
    target = {"boxes": boxes, "labels": torch.tensor([1]), "masks": Mask(torch.ones(1, 20, 30, dtype=torch.uint8))}
    _, targets = batch_of([target])
    for each in targets:
        assert [type(value) for value in each.values()] == [BoundingBoxes, torch.Tensor, Mask]
        assert vars(each["boxes"]) == vars(boxes)
        assert all(torch.equal(each[name], target[name]) for name in target)
        assert not any(value.is_shared() for value in each.values())


def test_so_do_empty_ones():
    target = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    _, targets = batch_of([target])
    assert [each["boxes"].shape for each in targets] == [(0, 4), (0, 4)]
    assert not any(value.is_shared() for each in targets for value in each.values())


def as_they_are(samples):
    return samples


def test_strides_stay():
    image = torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    for _, received in batch_of([image], as_they_are):
        assert received.stride() == image.stride()
        assert torch.equal(received, image)


def test_tensors_that_share_memory_go_on_sharing_it():
    rows = torch.tensor([[0, 0, 4, 5, 1]])
    boxes = BoundingBoxes(rows[:, :4], format="XYXY", canvas_size=(20, 30))
    _, (target, _) = batch_of([{"boxes": boxes, "labels": rows[:, 4]}])
    assert target["labels"].untyped_storage().data_ptr() == target["boxes"].untyped_storage().data_ptr()


class Named(torch.Tensor):
    """A type of the user's, which is pickled in a way of its own."""

    def __reduce_ex__(self, protocol):
        return named, (self.tolist(), self.told)


def named(values, told):
    tensor = torch.tensor(values).as_subclass(Named)
    tensor.told = told
    return tensor


def with_a_type_of_its_own(samples):
    files, labels = fl.collate(samples)
    return files, named(labels.tolist(), "labels")


def test_types_of_the_users_are_pickled_as_they_say():
    _, labels = batch_of([3], with_a_type_of_its_own)
    assert (type(labels), labels.told, labels.tolist()) == (Named, "labels", [3, 3])


def shared(samples):
    files, labels = fl.collate(samples)
    return files, labels.share_memory_()


def test_a_tensor_that_the_user_shares_is_shared():
    _, labels = batch_of([3], shared)
    assert labels.is_shared()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("kind", [int, torch.tensor])
def test_a_prefetch_loader_has_labels_sent_by_value(workers, kept, kind):
    data = [(torch.full((3, 64, 64), float(label)), kind(label)) for label in range(8)]
    loader = DataLoader(data, batch_size=4, num_workers=workers, persistent_workers=kept and workers > 0)
    prefetched = fl.PrefetchLoader(loader, device="cpu")
    for _ in range(2):
        for images, labels in prefetched:
            assert torch.equal(images[:, 0, 0, 0], labels.float())
            assert images.is_shared() == (workers > 0)
            assert not labels.is_shared()


def test_what_is_iterated_over_elsewhere_is_sent_as_pytorch_sends_it():
    loader = DataLoader([(FILE, 3)], num_workers=1, collate_fn=fl.collate)
    list(fl.PrefetchLoader(loader, device="cpu"))
    _, labels = next(iter(loader))
    assert labels.is_shared()
