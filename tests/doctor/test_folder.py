"""Folders as users have them: with bad files, without classes, with other things beside the images."""

import io
from pathlib import Path

import pytest
from PIL import Image

from fastload import doctor
from fastload.doctor import rates, sample_times
from fastload.doctor.folder import FolderOfImages
from tests.files import jpeg


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch):
    monkeypatch.setattr(rates, "SECONDS", 0.1)
    monkeypatch.setattr(sample_times, "SECONDS", 0.1)


def write(folder, *names, contents=None):
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(jpeg(40, 30, seed=seed) if contents is None else contents)


def gif():
    file = io.BytesIO()
    Image.new("P", (40, 30)).save(file, "GIF")
    return file.getvalue()


def images_found(folder):
    return [Path(sample).relative_to(folder).as_posix() for sample in FolderOfImages(folder, abs).samples]


def test_images_are_those_of_the_folder_and_of_its_classes(tmp_path):
    write(tmp_path, "cat/1.jpg", "cat/kittens/2.JPEG", "dog/3.png", "top.jpg", "cat/notes.txt")
    assert images_found(tmp_path) == ["top.jpg", "cat/1.jpg", "cat/kittens/2.JPEG", "dog/3.png"]


def test_hidden_files_and_folders_are_none_of_it(tmp_path):
    write(tmp_path, "1.jpg", "._1.jpg", ".thumbnails/1.jpg")
    (tmp_path / "empty").mkdir()
    assert images_found(tmp_path) == ["1.jpg"]


def test_a_folder_is_taken_for_itself_and_not_for_its_siblings(tmp_path, monkeypatch):
    write(tmp_path, "here/1.jpg", "beside/2.jpg")
    monkeypatch.chdir(tmp_path / "here")
    (image,) = doctor.find(".", [], 5, 5).loader.dataset.samples
    assert Path(image) == Path("1.jpg")


def test_every_format_that_is_looked_for_is_examined(tmp_path):
    write(tmp_path, "a/1.gif", "a/2.gif", contents=gif())
    assert doctor.examine(doctor.find(str(tmp_path), [], 5, 5)).is_measured


def test_bad_files_are_left_out_and_named(tmp_path):
    write(tmp_path, "good.jpg", "another.jpg")
    write(tmp_path, "cut.jpg", contents=jpeg(40, 30)[:-200])
    found = doctor.examine(doctor.find(str(tmp_path), [], 5, 5))
    assert found.is_measured
    assert found.bad_files == [str(tmp_path / "cut.jpg")]
    assert found.moved.plan.startswith("dataset.transform")


def test_offload_leaves_bad_files_out_too(tmp_path):
    write(tmp_path, "good.jpg", "another.jpg")
    write(tmp_path, "cut.jpg", contents=jpeg(40, 30)[:-200])
    loader = doctor.find(str(tmp_path), [], 5, 5).loader
    assert rates.offloaded(loader, measure=True, on_error="skip").samples_per_second > 0


def test_the_next_good_image_stands_for_a_bad_one(tmp_path):
    write(tmp_path, "2.jpg", "0.jpg")
    write(tmp_path, "1.jpg", "3.jpg", contents=b"no image")
    images = FolderOfImages(tmp_path, lambda image: image)
    first, last = images[0][0], images[2][0]
    assert [image.tobytes() for image, _ in map(images.__getitem__, range(4))] == [
        each.tobytes() for each in (first, last, last, first)
    ]


def test_a_folder_of_bad_files_alone_is_refused(tmp_path):
    write(tmp_path, "1.jpg", "2.jpg", contents=b"no image")
    with pytest.raises(ValueError, match=r"no image in .* can be decoded: tried 2, .*1\.jpg first"):
        doctor.find(str(tmp_path), [], 5, 5)
