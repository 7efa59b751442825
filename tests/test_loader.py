"""What a loader refuses, and what it remarks upon."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors

import fastload as fl
from fastload import transforms as T
from tests.guarantees.shared import MEAN, STD


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


GREY, LABELS = torch.zeros(16, 28, 28, dtype=torch.uint8), torch.arange(16)
FLIP = T.RandomHorizontalFlip()


@pytest.mark.parametrize(
    ("batch", "images", "beside"),
    [
        ((GREY, LABELS), None, r"batch\[1\]"),
        ({"image": GREY, "name": ["a digit"] * 16}, None, r"batch\['name'\]"),
        ({"label": LABELS, "image": GREY}, "image", r"batch\['label'\]"),
        (({"image": GREY}, LABELS), None, r"batch\[1\]"),
    ],
)
def test_grey_images_without_an_axis_of_channels_are_remarked_upon_once(batch, images, beside):
    with pytest.warns(UserWarning, match=f"one image of 16 channels.*{beside} has 16 entries.*unsqueeze") as caught:
        list(fl.PrefetchLoader([batch] * 3, transform=FLIP, device="cpu", images=images))
    assert len(caught) == 1


@pytest.mark.parametrize(
    "batch",
    [
        (GREY[:, None], LABELS),
        GREY,
        (GREY, LABELS[:1]),
        (GREY, torch.tensor(7), "sixteen letters.", 16),
        (GREY, *range(15)),
        (GREY[:3], LABELS[:3]),
        (GREY[:4], LABELS[:4]),
        ([GREY], [{"boxes": torch.zeros(16, 4)}]),
        (tv_tensors.Image(GREY), LABELS),
    ],
    ids=["with channels", "alone", "one label", "no lists", "16 fields", "RGB", "RGBA", "a list", "typed"],
)
def test_single_images_pass_in_silence(batch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(fl.PrefetchLoader([batch], transform=FLIP, device="cpu"))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_dtype_auto_is_what_a_training_step_computes_in_there(device):
    model = torch.nn.Linear(4, 2).to(device)
    step = fl.TrainStep(model, torch.optim.SGD(model.parameters(), 0.1), torch.nn.CrossEntropyLoss())
    names = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    uint8 = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    (images,) = fl.PrefetchLoader([uint8], MEAN, STD, dtype="auto", device=device)
    assert images.dtype is names[step.precision]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "float16"}, "dtype must be torch.float32, torch.bfloat16, torch.float16 or 'auto'; got 'float16'"),
        ({"mean": MEAN, "std": STD, "transform": T.Normalize(MEAN, STD)}, "images would be normalised twice"),
        ({"loader": 7}, "loader must be an iterable of batches.*got int"),
        ({"depth": 0}, "depth must be an int of at least 1.*got 0"),
        ({"depth": 1.5}, "depth must be an int; got 1.5"),
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


@pytest.mark.parametrize("transform", [T.DecodeJpeg(), T.Compose([T.DecodeJpeg(), T.RandomResizedCrop(8)])])
def test_files_that_are_not_collated_by_fastload_are_refused_at_once(transform):
    loader = DataLoader([b"a file", b"another"], 2)
    with pytest.raises(TypeError, match=r"pass collate_fn=fl\.collate to the DataLoader"):
        fl.PrefetchLoader(loader, transform=transform, device="cpu")


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


def test_a_batch_may_be_one_image_and_nothing_else():
    image = torch.arange(3 * 4 * 5).view(3, 4, 5)
    (out,) = fl.PrefetchLoader([image], transform=T.RandomHorizontalFlip(1.0), device="cpu")
    assert torch.equal(out, image.flip(-1))


def test_boxes_go_where_their_image_goes():
    boxes = tv_tensors.BoundingBoxes([[0, 1, 3, 2]], format="XYXY", canvas_size=(4, 4))
    batch = ([torch.zeros(3, 4, 4, dtype=torch.uint8)], [{"boxes": boxes, "labels": torch.tensor([7])}])
    ((_, targets),) = fl.PrefetchLoader([batch], transform=T.RandomHorizontalFlip(1.0), device="cpu")
    assert targets[0]["boxes"].tolist() == [[1, 1, 4, 2]]
    assert targets[0]["labels"].tolist() == [7]


def test_a_rewrapped_loader_draws_what_this_one_would_have_drawn():
    batches = [torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4)]
    loader = fl.PrefetchLoader(batches, MEAN, STD, transform=T.RandomHorizontalFlip(), device="cpu", seed=3)
    list(loader)
    other = loader.rewrapped(batches)
    assert other.epoch == 1
    assert all(map(torch.equal, other, loader))


def seeded(worker):  # noqa: ARG001
    torch.manual_seed(7)


class Drawn(Dataset):
    """Each sample is a random number of its worker."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.rand(())


def test_what_a_framework_sets_is_set_on_the_wrapped_loader():
    inner = DataLoader(Drawn(), batch_size=3, num_workers=1)
    loader = fl.PrefetchLoader(inner, device="cpu")
    loader.worker_init_fn = seeded  # as Lightning's seed_everything(workers=True) does
    assert inner.worker_init_fn is seeded
    drawn = next(iter(loader))
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.stack([torch.rand(()) for _ in range(3)]))
    with pytest.raises(ValueError, match="batch_size"):  # as DataLoader has it
        loader.batch_size = 5
    loader.name = "train"
    assert not hasattr(inner, "name")


def test_a_loader_shows_its_settings():
    loader = fl.PrefetchLoader(DataLoader(Drawn()), transform=T.RandomHorizontalFlip(0.3), device="cpu", seed=4)
    assert repr(loader) == (
        "PrefetchLoader(DataLoader, transform=RandomHorizontalFlip(p=0.3), device='cpu', depth=3, seed=4, epoch=0)"
    )


def test_a_loader_of_batches_of_a_type_is_a_loader():
    loader = fl.PrefetchLoader[tuple[torch.Tensor, int]]([(torch.zeros(2, 3, 4, 4), 1)], device="cpu")
    assert isinstance(loader, fl.PrefetchLoader)
    ((_, label),) = loader
    assert label == 1
