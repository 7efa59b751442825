"""``CocoEvaluator``: COCO's average precision of torchvision's detection models, computed by faster-coco-eval."""

from __future__ import annotations

from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster
from faster_coco_eval.core.mask import encode
from torch import Tensor, distributed
from torchvision.ops import box_convert

__all__ = ["CocoEvaluator"]

MASK_THRESHOLD = 0.5  # predicted masks are (N, 1, H, W), from 0 to 1; true ones (N, H, W), 0 or 1
OKS_SIGMA = 0.05  # tolerance of a keypoint, as a part of its object's size; COCO has 0.03 to 0.11 for people


class CocoEvaluator:
    """COCO's average precision of the predictions for the images of all ranks.

    Args:
        kinds: what to evaluate, of "bbox", "segm" and "keypoints".
        classes: the names of labels 1, 2, …
        keypoints: the number of keypoints of an object.
    """

    def __init__(self, kinds: list[str], classes: list[str], keypoints: int) -> None:
        self.kinds = kinds
        self.classes = classes
        self.keypoints = keypoints
        self.images: list[dict[str, Any]] = []
        self.targets: list[dict[str, Any]] = []
        self.predictions: list[dict[str, Any]] = []

    def update(self, predictions: list[dict], targets: list[dict]) -> None:
        """Add a model's predictions for a batch, and the batch's targets, which have ``image_id``."""
        for prediction, target in zip(predictions, targets, strict=True):
            height, width = target["boxes"].canvas_size
            self.images.append({"id": target["image_id"], "height": height, "width": width})
            self.targets += records(target["image_id"], target)
            self.predictions += records(target["image_id"], prediction)

    def compute(self) -> dict[str, float]:
        """Return each kind's AP, the mean over IoU from 0.5 to 0.95, and AP50; and the number of images."""
        images, targets, predictions = (gathered(each) for each in (self.images, self.targets, self.predictions))
        for number, record in enumerate(targets, start=1):
            record |= {"id": number, "iscrowd": 0, "num_keypoints": self.keypoints}
        categories = [{"id": number, "name": name} for number, name in enumerate(self.classes, start=1)]
        truth = COCO({"images": images, "annotations": targets, "categories": categories})
        detections = truth.loadRes(predictions)
        results: dict[str, float] = {"images": len(images)}
        for kind in self.kinds:
            evaluation = COCOeval_faster(truth, detections, kind, kpt_oks_sigmas=[OKS_SIGMA] * self.keypoints)
            evaluation.run()
            results |= {f"{kind} AP": evaluation.stats[0], f"{kind} AP50": evaluation.stats[1]}
        return results


def records(image_id: int, objects: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Return an image's objects in COCO's format: the true ones, or the predicted ones, which have scores."""
    boxes = box_convert(objects["boxes"], "xyxy", "xywh")
    columns = {
        "bbox": boxes.tolist(),
        "category_id": objects["labels"].tolist(),
        "area": boxes[:, 2:].prod(1).tolist(),
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
