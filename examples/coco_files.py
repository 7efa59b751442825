"""``CocoFiles``: the files and objects of a folder of COCO's, undecoded, for ``fl.collate`` and ``T.DecodeJpeg``.

>>> data = CocoFiles("coco", "train2017")  # doctest: +SKIP
>>> file, target = data[7]  # doctest: +SKIP
>>> sorted(target)  # doctest: +SKIP
['boxes', 'image_id', 'labels', 'masks']
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from faster_coco_eval import COCO
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import tv_tensors

__all__ = ["CocoFiles"]


class CocoFiles(Dataset[tuple[Path, dict]]):
    """The images of ``folder/split`` with objects, which ``folder/annotations/instances_{split}.json`` lists.

    An item is a path and a target: ``boxes``, float32 (N, 4), XYXY; ``labels``, int64 (N,), from 1, the place of the
    object's class in ``classes``; ``masks``, uint8 (N, H, W), 0 or 1; ``image_id``, COCO's. Crowds are left out, and
    images without other objects.

    Args:
        folder: as COCO's archives unpack.
        split: such as "train2017".
        masks: whether targets have masks.

    Raises:
        FileNotFoundError: there is no such file of annotations.
    """

    def __init__(self, folder: str | Path, split: str, *, masks: bool = True) -> None:
        annotations = Path(folder, "annotations", f"instances_{split}.json")
        if not annotations.is_file():
            raise FileNotFoundError(f"{folder} is no folder of COCO's: there is no {annotations}")
        self.folder = Path(folder, split)
        self.masks = masks
        self.coco = COCO(str(annotations))
        categories = sorted(self.coco.cats)
        self.classes = [self.coco.cats[number]["name"] for number in categories]
        self._labels = {number: label for label, number in enumerate(categories, start=1)}
        self._images = [number for number in sorted(self.coco.imgs) if self._objects(number)]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Path, dict[str, Any]]:
        number = self._images[index]
        image, objects = self.coco.imgs[number], self._objects(number)
        size = image["height"], image["width"]
        corners = torch.tensor([[x, y, x + width, y + height] for x, y, width, height in (o["bbox"] for o in objects)])
        target = {
            "boxes": tv_tensors.BoundingBoxes(corners.float(), format="XYXY", canvas_size=size),
            "labels": torch.tensor([self._labels[each["category_id"]] for each in objects]),
            "image_id": number,
        }
        if self.masks:
            target["masks"] = tv_tensors.Mask(self._drawn(objects))
        return self.folder / image["file_name"], target

    def _objects(self, number: int) -> list[dict[str, Any]]:
        """An image's objects that have an area and are no crowd: a detector cannot learn from others."""
        objects = self.coco.loadAnns(self.coco.getAnnIds(imgIds=[number], iscrowd=False))
        return [each for each in objects if min(each["bbox"][2:]) > 0]

    def _drawn(self, objects: list[dict[str, Any]]) -> Tensor:
        return torch.from_numpy(np.stack([self.coco.annToMask(each) for each in objects]))
