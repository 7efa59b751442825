"""``StepCase``: a model and its batch, for ``step``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torchvision
from torch import nn

from fastload.bench.subjects.training_state import LossFn

__all__ = ["STEP_CASES", "StepCase", "StepSize"]

Batch = tuple[Any, Any]  # inputs and targets


@dataclass(frozen=True)
class StepSize:
    """How large a batch is, and how many steps a window has."""

    batch: int
    side: int
    steps: int
    warm_up: int


@dataclass(frozen=True)
class StepCase:
    """A model, a tiny one of its kind for the CPU, their batch, and the loss; None if the model returns losses."""

    model: Callable[[], nn.Module]
    tiny_model: Callable[[], nn.Module]
    batch: Callable[[StepSize, torch.Generator], Batch]
    loss_fn: LossFn | None = nn.functional.cross_entropy
    # Whether the convolutions' shapes are the same in each step. Mask R-CNN's follow the number of proposals, and
    # cuDNN would search again for each.
    fixed_shapes: bool = True


def _tiny_vit() -> nn.Module:
    model: nn.Module = torchvision.models.VisionTransformer(32, 16, 1, 2, 16, 16)
    return model


def _tiny_resnet() -> nn.Module:
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4, 1000))


def _maskrcnn() -> nn.Module:
    build = torchvision.models.detection.maskrcnn_resnet50_fpn
    model: nn.Module = build(weights=None, weights_backbone=None)
    return model


def _tiny_maskrcnn() -> nn.Module:
    """One convolution as backbone, four channels, one anchor a place."""
    detection = torchvision.models.detection
    model: nn.Module = detection.MaskRCNN(
        nn.Conv2d(3, 4, 3, stride=8, padding=1),
        min_size=32,
        max_size=32,
        rpn_anchor_generator=detection.anchor_utils.AnchorGenerator(((16,),), ((1.0,),)),
        box_head=detection.faster_rcnn.TwoMLPHead(4 * 7 * 7, 8),
        box_predictor=detection.faster_rcnn.FastRCNNPredictor(8, 91),
        mask_head=detection.mask_rcnn.MaskRCNNHeads(4, (4,), 1),
        mask_predictor=detection.mask_rcnn.MaskRCNNPredictor(4, 4, 91),
    )
    return model


def _classified(size: StepSize, generator: torch.Generator) -> Batch:
    images = torch.randn(size.batch, 3, size.side, size.side, generator=generator)
    return images, torch.randint(1000, (size.batch,), generator=generator)


def _detected(size: StepSize, generator: torch.Generator) -> Batch:
    """Images in the shape of COCO's, with eight objects each."""
    height, width = size.side * 3 // 4, size.side
    images = [torch.rand(3, height, width, generator=generator) for _ in range(size.batch)]
    targets = []
    for _ in images:
        corners = torch.rand(8, 2, generator=generator) * torch.tensor([width / 2, height / 2])
        sides = (0.1 + 0.4 * torch.rand(8, 2, generator=generator)) * torch.tensor([width, height])
        masks = torch.randint(2, (8, height, width), dtype=torch.uint8, generator=generator)
        labels = torch.randint(1, 91, (8,), generator=generator)
        targets.append({"boxes": torch.cat([corners, corners + sides], dim=1), "labels": labels, "masks": masks})
    return images, targets


STEP_CASES = {
    "vit_b16_b128": StepCase(torchvision.models.vit_b_16, _tiny_vit, _classified),
    "resnet18_b64": StepCase(torchvision.models.resnet18, _tiny_resnet, _classified),
    "maskrcnn_b4": StepCase(_maskrcnn, _tiny_maskrcnn, _detected, loss_fn=None, fixed_shapes=False),
}
