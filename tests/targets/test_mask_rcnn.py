"""Files with boxes and masks at full size, through torchvision's Mask R-CNN."""

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.models.detection import maskrcnn_resnet50_fpn
from torchvision.transforms import v2
from torchvision.tv_tensors import BoundingBoxes, Mask

import fastload as fl
from fastload import transforms as T
from tests.files import jpeg

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EPS = torch.finfo(torch.float32).eps


class Scenes(torch.utils.data.Dataset):
    """Photographs in the sizes of COCO, each with rectangles that have a box, a mask and a label."""

    def __init__(self, scale: float):
        self.sizes = [(round(height * scale), round(width * scale)) for height, width in [(480, 640), (427, 640)] * 2]

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, number):
        height, width = self.sizes[number]
        left, top = torch.tensor([[0.1, 0.4], [0.2, 0.5]]) * torch.tensor([[width], [height]])
        boxes = torch.stack([left, top, left + width / 3, top + height / 4], dim=1).round()
        masks = torch.zeros(2, height, width, dtype=torch.uint8)
        for mask, (x0, y0, x1, y1) in zip(masks, boxes.int().tolist(), strict=True):
            mask[y0:y1, x0:x1] = 1
        target = {
            "boxes": BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
            "masks": Mask(masks),
            "labels": torch.tensor([1, 2]),
        }
        return jpeg(height, width, seed=number), target


@pytest.mark.parametrize(
    ("device", "scale"), [pytest.param("cuda", 1.0, marks=pytest.mark.gpu), pytest.param("cpu", 0.15, id="cpu, tiny")]
)
def test_files_with_boxes_and_masks_train_mask_rcnn(device, scale):
    scenes = Scenes(scale)
    transform = T.Compose([T.DecodeJpeg(), T.RandomHorizontalFlip(1.0), T.Normalize(MEAN, STD)])
    loader = DataLoader(scenes, 2, num_workers=1, collate_fn=fl.collate)
    side = min(height for height, _ in scenes.sizes)
    torch.manual_seed(0)
    model = maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=3, min_size=side, max_size=10 * side,
        image_mean=[0.0] * 3, image_std=[1.0] * 3, box_detections_per_img=10, rpn_post_nms_top_n_train=50,
    ).to(device)  # fmt: skip
    step = fl.TrainStep(model, torch.optim.SGD(model.parameters(), 1e-3), precision="fp32")
    flip = v2.RandomHorizontalFlip(1.0)
    for number, (images, targets) in enumerate(fl.PrefetchLoader(loader, transform=transform, device=device)):
        assert torch.isfinite(step(images, targets).loss)
        for place, (image, target) in enumerate(zip(images, targets, strict=True)):
            wanted = flip(scenes[2 * number + place][1])
            assert image.shape[1:] == scenes.sizes[2 * number + place]
            assert target["boxes"].canvas_size == wanted["boxes"].canvas_size
            torch.testing.assert_close(target["boxes"].cpu(), wanted["boxes"], rtol=4 * EPS, atol=0)
            assert target["masks"].cpu().equal(wanted["masks"])
            assert {each.device.type for each in (image, *target.values())} == {device}
    assert step.updates == 2
