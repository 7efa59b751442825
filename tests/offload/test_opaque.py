"""Images that are handed over refuse to be computed with, and say why."""

import copy
import operator
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import fastload as fl
from fastload.offload.handover import HandedImage, HandedImages

SAYS = r"fl\.offload does their transform on the device, later.*fl\.offload\(loader, transform=\.\.\.\)"
IMAGES = [HandedImage(torch.zeros(3, 4, 4), "a.jpg"), HandedImages([])]


@pytest.mark.parametrize("images", IMAGES, ids=["one", "a batch"])
@pytest.mark.parametrize(
    "use",
    [
        lambda images: images * 2.0,
        lambda images: 1 - images,
        lambda images: torch.ones(3) * images,
        lambda images: np.ones(3) / images,
        lambda images: -images,
        lambda images: images > 0,
        lambda images: images[0],
        lambda images: operator.setitem(images, 0, 0),
        list,
        np.asarray,
    ],
)
def test_operators_say_why(images, use):
    with pytest.raises(TypeError, match=SAYS):
        use(images)


@pytest.mark.parametrize("images", IMAGES, ids=["one", "a batch"])
def test_attributes_say_why(images):
    with pytest.raises(AttributeError, match=f"shape of images .*{SAYS}"):
        _ = images.shape
    assert not hasattr(images, "to")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda image: pickle.loads(pickle.dumps(image))])
def test_an_image_can_be_copied_and_sent(copied):
    image = copied(IMAGES[0])
    assert image.name == "a.jpg"
    assert torch.equal(image.value, torch.zeros(3, 4, 4))


class Late(Dataset):
    """Computes with an image that is not among those read at first."""

    transform = v2.Compose([v2.CenterCrop(8), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def __len__(self):
        return 8

    def __getitem__(self, index):
        image = self.transform(Image.new("RGB", (16, 16)))
        return image if index < 6 else image * 0.5


@pytest.mark.parametrize("workers", [0, 1])
def test_an_operation_that_is_met_late_says_why(workers):
    loader = fl.offload(DataLoader(Late(), 4, num_workers=workers), device="cpu")
    with pytest.raises(TypeError, match=SAYS):
        list(loader)
