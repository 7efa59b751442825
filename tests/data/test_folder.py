"""The same samples as torchvision's, as paths."""

import sys
from pathlib import Path

import pytest
import torchvision
from PIL import Image
from torch.utils.data import DataLoader

import fastload.data
from fastload.data import ImageFolder
from fastload.data.collate import collate
from tests.files import jpeg, saved


@pytest.fixture
def root(tmp_path):
    for name in ("dog/a.jpg", "dog/deep/b.jpeg", "cat/c.PNG", "cat/notes.txt", "ant/d.webp"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(saved(Image.new("RGB", (4, 3)), "PNG") if "PNG" in name else jpeg())
    return tmp_path


def test_it_lists_what_torchvision_lists(root):
    ours, theirs = ImageFolder(root), torchvision.datasets.ImageFolder(root)
    assert len(ours) == len(theirs) == 4
    for name in ("classes", "class_to_idx", "samples", "targets", "extensions"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert repr(ours) == repr(theirs)


def test_a_sample_is_a_path_and_a_class(root):
    dataset = ImageFolder(root)
    assert dataset[1] == (root / "cat/c.PNG", 1)
    assert isinstance(dataset[1][0], Path)
    assert ImageFolder(root, target_transform=lambda label: -label)[1][1] == -1


def test_files_can_be_chosen(root):
    assert ImageFolder(root, (".txt", ".webp", ".jpg")).classes == ["ant", "cat", "dog"]
    assert len(ImageFolder(root, is_valid_file=lambda path: path.endswith(".jpg"), allow_empty=True)) == 1


def test_its_batches_are_files_with_names(root):
    ((files, labels),) = DataLoader(ImageFolder(root), batch_size=4, collate_fn=collate)
    assert labels.tolist() == [0, 1, 2, 2]
    assert files.names[2] == str(root / "dog/a.jpg")
    assert files.sizes.tolist() == [[48, 72], [3, 4], [48, 72], [48, 72]]


def test_what_is_not_there_is_named(root):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ImageFolder(root / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"class folder in .*deep"):
        ImageFolder(root / "dog" / "deep")
    (root / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="classes empty"):
        ImageFolder(root)


def test_it_needs_no_scikit_image(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    monkeypatch.delitem(sys.modules, "fastload.data.folder")
    assert issubclass(fastload.data.ImageFolder, torchvision.datasets.DatasetFolder)
