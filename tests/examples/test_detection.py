"""What the example of detection is made of besides fastload: COCO's evaluation, over ranks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

from tests.lives import be_born, run_ranks

coco = pytest.importorskip("coco", exc_type=ImportError)
pasted = pytest.importorskip("pasted", exc_type=ImportError)
detection = pytest.importorskip("detection", exc_type=ImportError)

EXAMPLE = Path(__file__).parents[2] / "examples" / "detection.py"
KINDS = ["bbox", "segm", "keypoints"]


def targets():
    """Of six images, with keypoints as torchvision's models take and find them."""
    for index in range(6):
        _, target = pasted.Pasted(6)[index]
        points = target["keypoints"].as_subclass(torch.Tensor)
        yield target | {"keypoints": torch.cat([points, torch.ones(*points.shape[:2], 1)], dim=2)}


def found_exactly(target):
    return {
        "boxes": target["boxes"].as_subclass(torch.Tensor),
        "labels": target["labels"],
        "scores": torch.ones(len(target["labels"])),
        "masks": target["masks"].as_subclass(torch.Tensor)[:, None].float(),
        "keypoints": target["keypoints"],
    }


def evaluated(change) -> dict[str, float]:
    evaluator = coco.CocoEvaluator(KINDS, list(pasted.CLASSES), keypoints=len(pasted.KEYPOINTS))
    for target in targets():
        evaluator.update([found_exactly(target) | change(target)], [target])
    return evaluator.compute()


def test_what_is_found_exactly_has_a_precision_of_1():
    results = evaluated(lambda _: {})
    assert results.pop("images") == 6
    assert results == {f"{kind} {name}": pytest.approx(1) for kind in KINDS for name in ("AP", "AP50")}


def test_each_kind_is_measured_for_itself():
    def shifted(name, pixels):
        return lambda target: {name: found_exactly(target)[name] + torch.tensor(pixels)}

    def without_half(target):
        masks = found_exactly(target)["masks"]
        return {"masks": masks * (torch.arange(masks.shape[-1]) % 2)}

    changes = {
        "bbox": shifted("boxes", [10.0, 0, 10, 0]),
        "segm": without_half,
        "keypoints": shifted("keypoints", [8.0, 0, 0]),
    }
    for changed, change in changes.items():
        results = evaluated(change)
        assert {kind for kind in KINDS if results[f"{kind} AP"] < 0.9} == {changed}


def test_objects_found_as_another_class_or_not_at_all_count_nothing():
    wrong = evaluated(lambda target: {"labels": target["labels"] % len(pasted.CLASSES) + 1})
    assert all(wrong[f"{kind} AP50"] < 0.2 for kind in KINDS)
    none = evaluated(lambda target: {name: value[:0] for name, value in found_exactly(target).items()})
    assert all(none[f"{kind} AP"] == 0 for kind in KINDS)


def test_every_class_counts_as_much():
    def without_the_last(target):
        others = target["labels"] < len(pasted.CLASSES)
        return {name: value[others] for name, value in found_exactly(target).items()}

    results = evaluated(without_the_last)
    assert all(results[f"{kind} AP"] == pytest.approx(0.75) for kind in KINDS)


def started(*command: str) -> str:
    """What a command prints that a user starts."""
    ended = subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(EXAMPLE.parents[1]), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def print_as_rank(rank: int, home: Path) -> None:
    be_born()
    distributed.init_process_group("gloo", f"file://{home / 'store'}", rank=rank, world_size=2)
    metrics = detection.Smoothed()
    lines = []
    for losses in ([0.0, 10, 1], [5.0]):
        for loss in losses:
            metrics.add({"loss": torch.tensor(loss + 2 * rank), "loss_mask": torch.tensor(rank)})
        lines.append(metrics.line())
    (home / f"{rank}.txt").write_text("\n".join(lines))
    distributed.destroy_process_group()


@pytest.mark.long
def test_ranks_print_the_median_of_the_batches_since_the_last_line_of_the_mean_over_ranks(tmp_path):
    run_ranks(print_as_rank, tmp_path, seconds=200)
    for rank in range(2):
        first, second = (tmp_path / f"{rank}.txt").read_text().splitlines()
        assert first.startswith("loss 2.0000, loss_mask 0.5000, ")
        assert second.startswith("loss 6.0000, ")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_it_learns_to_find_objects_in_photographs_that_it_has_not_seen(precision):
    short = ("--images", "1600", "--epochs", "2", "--held-out", "100")
    printed = started(str(EXAMPLE), *short, "--precision", precision)
    *_, last = re.findall(r"bbox AP50 (\S+),", printed)
    assert float(last) > 0.2


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_boxes_and_keypoints_fit_their_masks_when_they_come_to_the_model(device, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["detection.py", "--tiny", "--images", "24"])
    options = detection.parsed_options()
    loader, _ = detection.make_loaders(*detection.make_data(options), options, torch.device(device), rank=0, ranks=1)
    mirrored = 0
    for images, targets in loader:
        for image, target in zip(images, targets, strict=True):
            original, _ = pasted.Pasted(24)[target["image_id"]]
            mirrored += not torch.equal((image * 255).round().byte().cpu(), original)
            check_fit(image, {name: value.cpu() for name, value in target.items() if name != "image_id"})
    assert 0 < mirrored < 24


def check_fit(image, target):
    assert image.dtype is torch.float32
    assert image.max() <= 1
    for box, points, mask in zip(target["boxes"].int(), target["keypoints"], target["masks"], strict=True):
        columns, rows = mask.any(0).nonzero(), mask.any(1).nonzero()
        assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        x, y = points.round().long().unbind(1)
        assert mask[y, x].all()
