"""A batch is known again by its checksum, whatever it holds."""

import pytest
import torch

import fastload as fl
from fastload.resume.checksum import checksum_of
from fastload.structure.tree import tree_flatten
from tests.files import jpeg

PIXELS = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)


def checksum(batch):
    return checksum_of(tree_flatten(batch))


KINDS = {
    "images": lambda n: PIXELS + n,
    "channels last": lambda n: (PIXELS + n).contiguous(memory_format=torch.channels_last),
    "one number": lambda n: torch.tensor(float(n)),
    "half precision": lambda n: torch.full((3,), n, dtype=torch.bfloat16),
    "with a gradient": lambda n: torch.full((3,), float(n), requires_grad=True),
    "numbers": lambda n: {"label": n},
    "after many paths": lambda n: {"path": [f"{each}.jpg" for each in range(20)], "label": torch.tensor([n])},
    "bytes": lambda n: b"abc%d" % n,
    "files": lambda n: fl.collate([jpeg(8 + n, 8)]),
    "the end of a long one": lambda n: torch.tensor([0] * 9999 + [n]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_equal_batches_have_the_same_and_others_another(kind):
    one, same, other = (checksum(KINDS[kind](n)) for n in (1, 1, 2))
    assert one == same != other
    assert one is not None


@pytest.mark.parametrize("batch", ["a path", object(), [], torch.zeros(2, device="meta"), torch.eye(2).to_sparse()])
def test_what_holds_no_values_at_hand_has_none(batch):
    assert checksum(batch) is None


def test_an_empty_tensor_has_one():
    assert checksum(torch.zeros(0, 3)) is not None


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor(1j).conj(),
        torch._neg_view(torch.tensor([1.0, 2.0])),
        torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]),
    ],
    ids=["conjugated", "conjugated, one number", "negated", "nested"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_tensors_without_plain_bytes_are_delivered_as_they_are(value):
    (delivered,) = fl.PrefetchLoader([value], device="cpu")
    assert delivered.is_nested == value.is_nested
    parts, expected = ((each.unbind() if each.is_nested else [each]) for each in (delivered, value))
    assert all(torch.equal(one + 0, other + 0) for one, other in zip(parts, expected, strict=True))
