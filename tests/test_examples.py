"""The examples run as their users run them, on few and small images."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(*command: str) -> str:
    ended = subprocess.run([sys.executable, *command], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("model", "kinds"),
    [("faster_rcnn", ["bbox"]), ("mask_rcnn", ["bbox", "segm"]), ("keypoint_rcnn", ["bbox", "keypoints"])],
)
def test_detection(model, kinds):
    pytest.importorskip("faster_coco_eval")
    printed = run("detection.py", "--tiny", "--model", model)
    assert "epoch 0, 2/2: lr 0.0002, loss " in printed
    assert all(f"{kind} AP50 0" in printed for kind in kinds)
