"""``CocoEvaluator``: what torchvision's detection models find, measured as COCO does it, by faster-coco-eval."""

from __future__ import annotations

from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster
from faster_coco_eval.core.mask import encode
from torch import Tensor, distributed
from torchvision.ops import box_convert

__all__ = ["CocoEvaluator"]

MASK_THRESHOLD = 0.5  # masks that are found are (N, 1, H, W), from 0 to 1; true ones (N, H, W), 0 or 1
OKS_SIGMA = 0.05  # how far a keypoint may be off, as a part of its object's size; those of COCO's people: 0.03 to 0.11


class CocoEvaluator:
    """COCO's average precision of what was found in the images of all ranks.

    Args:
        kinds: of what: "bbox", "segm", "keypoints".
        classes: their names, of label 1, 2, …
        keypoints: how many an object has.
    """

    def __init__(self, kinds: list[str], classes: list[str], keypoints: int) -> None:
        self.kinds = kinds
        self.classes = classes
        self.keypoints = keypoints
        self.images: list[dict[str, Any]] = []
        self.true: list[dict[str, Any]] = []
        self.found: list[dict[str, Any]] = []

    def update(self, found: list[dict], targets: list[dict]) -> None:
        """Take what a model has found in images, and their targets with ``image_id``."""
        for detected, true in zip(found, targets, strict=True):
            height, width = true["boxes"].canvas_size
            self.images.append({"id": true["image_id"], "height": height, "width": width})
            self.true += records(true["image_id"], true)
            self.found += records(true["image_id"], detected)

    def compute(self) -> dict[str, float]:
        """Return AP, the mean over IoU from 0.5 to 0.95, and AP50, of each kind, and of how many images."""
        images, true, found = (gathered(each) for each in (self.images, self.true, self.found))
        for number, record in enumerate(true, start=1):
            record |= {"id": number, "iscrowd": 0, "num_keypoints": self.keypoints}
        categories = [{"id": number, "name": name} for number, name in enumerate(self.classes, start=1)]
        truth = COCO({"images": images, "annotations": true, "categories": categories})
        detections = truth.loadRes(found)
        results: dict[str, float] = {"images": len(images)}
        for kind in self.kinds:
            evaluation = COCOeval_faster(truth, detections, kind, kpt_oks_sigmas=[OKS_SIGMA] * self.keypoints)
            evaluation.run()
            results |= {f"{kind} AP": evaluation.stats[0], f"{kind} AP50": evaluation.stats[1]}
        return results


def records(image_id: int, objects: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Return an image's objects as COCO writes them: the true ones, or those that were found, which have scores."""
    columns = {
        "bbox": box_convert(objects["boxes"], "xyxy", "xywh").tolist(),
        "category_id": objects["labels"].tolist(),
    }
    if "scores" in objects:
        columns["score"] = objects["scores"].tolist()
    if "masks" in objects:
        masks = objects["masks"].flatten(0, -3) > MASK_THRESHOLD
        columns["segmentation"] = encode(np.asfortranarray(masks.permute(1, 2, 0).byte().cpu()))
        columns["area"] = masks.sum((1, 2)).tolist()
    if "keypoints" in objects:
        columns["keypoints"] = objects["keypoints"].flatten(1).tolist()
    rows = zip(*columns.values(), strict=True)
    return [{"image_id": image_id, **dict(zip(columns, row, strict=True))} for row in rows]


def gathered(records: list[dict]) -> list[dict]:
    """Return the records of all ranks."""
    if not distributed.is_initialized():
        return records
    parts: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, records)
    return [record for part in parts for record in part]
