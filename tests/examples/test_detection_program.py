"""The examples run as their users run them, on few and small images."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.counts import count
from tests.files import jpeg

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run an example in this process, and return what it has printed."""

    def run(name: str, *options: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *options])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


MODELS = [("faster_rcnn", ["bbox"]), ("mask_rcnn", ["bbox", "segm"]), ("keypoint_rcnn", ["bbox", "keypoints"])]


@pytest.mark.parametrize(("model", "kinds"), count(full=MODELS, here=MODELS[:2]))  # the third takes as long as both
def test_detection(run, model, kinds):
    pytest.importorskip("faster_coco_eval")
    printed = run("detection.py", "--tiny", "--model", model)
    assert "epoch 0, 2/2: lr " in printed
    assert "epoch 0: images 2, " in printed
    assert all(f"{kind} AP50 0" in printed for kind in kinds)


@pytest.mark.parametrize("model", ["faster_rcnn", "mask_rcnn"])
def test_detection_from_a_folder_of_coco(run, tmp_path, model):
    pytest.importorskip("faster_coco_eval")
    for split, images in {"train2017": 4, "val2017": 2}.items():
        write_coco(tmp_path, split, images)
    printed = run("detection.py", "--tiny", "--model", model, "--data", str(tmp_path))
    assert "epoch 0, 2/2: lr " in printed
    assert "epoch 0: images 2, bbox AP" in printed


def test_what_is_no_folder_of_coco_is_said(run, tmp_path):
    pytest.importorskip("faster_coco_eval")
    with pytest.raises(FileNotFoundError, match=r"is no folder of COCO's: there is no .*instances_train2017\.json"):
        run("detection.py", "--tiny", "--data", str(tmp_path))
    with pytest.raises(SystemExit):
        run("detection.py", "--tiny", "--model", "keypoint_rcnn", "--data", str(tmp_path))


def write_coco(folder, split, images):
    """Files of one object each, of the second of two categories with numbers as COCO has them, and of a crowd."""
    shape = {"category_id": 90, "bbox": [10, 8, 20, 16], "area": 320, "segmentation": [[10, 8, 30, 8, 30, 24, 10, 24]]}
    crowd = shape | {"iscrowd": 1, "segmentation": {"size": [48, 72], "counts": [0, 48 * 72]}}
    annotations = [
        each | {"id": 2 * number + is_crowd, "image_id": number, "iscrowd": is_crowd}
        for number in range(1, images + 1)
        for is_crowd, each in enumerate((shape, crowd))
    ]
    listed = [
        {"id": number, "file_name": f"{number}.jpg", "height": 48, "width": 72} for number in range(1, images + 1)
    ]
    categories = [{"id": 1, "name": "person"}, {"id": 90, "name": "toothbrush"}]
    (folder / split).mkdir()
    for image in listed:
        (folder / split / image["file_name"]).write_bytes(jpeg(seed=image["id"]))
    (folder / "annotations").mkdir(exist_ok=True)
    text = json.dumps({"images": listed, "annotations": annotations, "categories": categories})
    (folder / "annotations" / f"instances_{split}.json").write_text(text)


def test_detection_ends_at_a_loss_that_is_not_finite_and_tells_its_terms(run):
    pytest.importorskip("faster_coco_eval")
    terms = ("loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg")
    with pytest.raises(SystemExit, match=r"^training is stopped: .*" + r" \S+ \+ ".join(terms)):
        run("detection.py", "--tiny", "--lr", "1e30")
