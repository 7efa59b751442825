"""The examples run as their users run them, on few and small images."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.counts import count

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


def test_detection_ends_at_a_loss_that_is_not_finite_and_tells_its_terms(run):
    pytest.importorskip("faster_coco_eval")
    terms = ("loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg")
    with pytest.raises(SystemExit, match=r"^training is stopped: .*" + r" \S+ \+ ".join(terms)):
        run("detection.py", "--tiny", "--lr", "1e30")
