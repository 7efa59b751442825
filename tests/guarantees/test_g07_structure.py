"""G7: Batches keep their structure and types."""

import dataclasses
import types
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import MutableMapping

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torchvision import tv_tensors

import fastload as fl
from tests.guarantees.shared import MEAN, STD

Pair = namedtuple("Pair", "images labels")


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


class Keys(dict):
    """Its keys are attributes, and what it lacks is a KeyError."""

    __getattr__ = dict.__getitem__


class Anything(dict):
    """Its keys are attributes, and what it lacks is None."""

    __getattr__ = dict.get


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
        "keys as attributes": Keys(x=image),
        "any attribute": Anything(x=image),
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


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_g07_nested_tensors_stay_beside_images(layout):
    words = torch.nested.nested_tensor([torch.ones(3, 5), torch.ones(2, 5)], layout=layout)
    ((_, beside),) = fl.PrefetchLoader([(torch.zeros(2, 3, 4, 4), words)], MEAN, STD, device="cpu")
    assert beside.is_nested
    assert [len(each) for each in beside.unbind()] == [3, 2]
    with pytest.raises(TypeError, match="float32 nested"):
        next(iter(fl.PrefetchLoader([words], MEAN, STD, device="cpu")))


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
