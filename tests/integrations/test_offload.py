"""``fl.offload`` around loaders over the data sets of Hugging Face and timm."""

import datasets
import pytest
import torch
from timm.data import ImageDataset, create_loader, create_transform
from torch.utils.data import DataLoader
from torchvision import transforms as v1

import fastload as fl

NEAR = 2 / 255 / 0.2  # two decoders, and Pillow's rounding, in units of normalised values
augment = v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)])


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs") / "all"
    fl.data.sample_data(root, images=20)
    return root


def preprocess(batch):
    batch["pixel_values"] = [augment(image.convert("RGB")) for image in batch.pop("image")]
    return batch


def collate(samples):
    return {
        "pixel_values": torch.stack([sample["pixel_values"] for sample in samples]),
        "labels": torch.tensor([sample["label"] for sample in samples]),
    }


def of_hugging_face(root, function=preprocess):
    files = sorted(map(str, root.glob("train/*/*.jpg")))
    table = datasets.Dataset.from_dict({"image": files, "label": list(range(len(files)))})
    return table.cast_column("image", datasets.Image()).with_transform(function)


def loader_of(dataset, collate_fn=None):
    return DataLoader(dataset, 4, shuffle=True, collate_fn=collate_fn, generator=torch.Generator().manual_seed(3))


def within(strength):
    inside = v1.Compose([v1.Resize((strength, strength)), v1.ToTensor()])

    def transform(batch):
        return {"pixel_values": [inside(image) for image in batch["image"]], "label": batch["label"]}

    return transform


@pytest.mark.parametrize("collate_fn", [None, collate])
@pytest.mark.parametrize("function", [preprocess, within(24)], ids=["a global variable", "a variable of a function"])
def test_hugging_faces_function_is_given_files(photographs, function, collate_fn):
    dataset = of_hugging_face(photographs, function)
    loader = fl.offload(loader_of(dataset, collate_fn), device="cpu")
    for ours, theirs in zip(loader, loader_of(dataset, collate_fn), strict=True):
        assert ours.keys() == theirs.keys()
        name = "labels" if collate_fn else "label"
        assert ours[name].tolist() == theirs[name].tolist()
        assert torch.allclose(ours["pixel_values"], theirs["pixel_values"], rtol=0, atol=NEAR)
    assert "EncodedImages" in repr(next(iter(loader.loader)))


def test_a_function_without_a_transform_is_refused(photographs):
    with pytest.raises(TypeError, match="must use one variable that holds a transform of images; it uses none"):
        fl.offload(DataLoader(of_hugging_face(photographs, lambda batch: batch)))


def test_timms_data_set_and_transform(photographs):
    transform = create_transform(32, is_training=False, interpolation="bilinear", use_prefetcher=False)
    dataset = ImageDataset(photographs / "train", transform=transform)
    for ours, theirs in zip(fl.offload(loader_of(dataset), device="cpu"), loader_of(dataset), strict=True):
        assert ours[1].tolist() == theirs[1].tolist()
        assert torch.allclose(ours[0], theirs[0], rtol=0, atol=NEAR)


def test_timms_loader_without_its_prefetcher(photographs):
    dataset = ImageDataset(photographs / "train")
    plain = create_loader(dataset, 32, 4, use_prefetcher=False, num_workers=0, interpolation="bilinear")
    for ours, theirs in zip(fl.offload(plain, device="cpu"), plain, strict=True):
        assert ours[1].tolist() == theirs[1].tolist()
        assert torch.allclose(ours[0], theirs[0], rtol=0, atol=NEAR)
