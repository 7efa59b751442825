"""Faster, Mask and Keypoint R-CNN of torchvision, from random weights; to copy with the files that it imports.

Command:   python examples/detection.py --model mask_rcnn
           torchrun --nproc-per-node 4 examples/detection.py --model mask_rcnn
           python examples/detection.py --model mask_rcnn --data coco        COCO: train2017/, val2017/, annotations/
           python examples/detection.py --model mask_rcnn --tiny             a few small images, also on a CPU
Hardware:  one NVIDIA H200, 24 cores, in bf16
Result:    without --data, COCO's average precision on held-out images, for boxes, and for masks or keypoints:
           mask_rcnn       0.62, 0.70, in 3 minutes
           faster_rcnn     0.48 (--epochs 3), in 2.5 minutes, with 8 cores and another program on the GPU
           keypoint_rcnn   0.54, 0.58 (--epochs 3), in 3 minutes, likewise

Without --data the images are photographs of different sizes with objects pasted into them (pasted.py); with it, files
that the GPU decodes (coco_files.py). Images, boxes, masks and keypoints are mirrored there. The learning rate warms up
over the first epoch. Each epoch ends with COCO's average precision on images that were not trained on.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from coco import CocoEvaluator
from coco_files import CocoFiles
from pasted import KEYPOINTS, Pasted
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LinearLR, MultiStepLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision.models.detection import FasterRCNN, KeypointRCNN, MaskRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

import fastload as fl
from fastload import transforms as T  # noqa: N812  (as torchvision's users write it)

# Each model's class, its further arguments, and COCO's names for its outputs.
MODELS = {
    "faster_rcnn": (FasterRCNN, {}, ["bbox"]),
    "mask_rcnn": (MaskRCNN, {}, ["bbox", "segm"]),
    "keypoint_rcnn": (KeypointRCNN, {"num_keypoints": len(KEYPOINTS)}, ["bbox", "keypoints"]),
}
TINY = {"images": 4, "held_out": 2, "epochs": 1, "batch_size": 2, "size": 64, "proposals": 16, "workers": 0}


def main() -> None:
    options = parsed_options()
    with processes() as (device, rank, ranks):
        say = print if rank == 0 else lambda _: None
        torch.manual_seed(options.seed)
        train, held_out = make_data(options)
        detector = make_detector(options, classes=len(train.classes)).to(device)
        model = DistributedDataParallel(detector) if ranks > 1 else detector
        train_loader, held_out_loader = make_loaders(train, held_out, options, device, rank, ranks)
        optimizer = torch.optim.SGD(model.parameters(), options.lr, momentum=0.9, weight_decay=1e-4, fused=True)
        updates = len(train_loader)
        warmup = LinearLR(optimizer, start_factor=1 / 1000, total_iters=max(1, min(1000, updates - 1)))
        decay = MultiStepLR(optimizer, [round(options.epochs * updates * part) for part in (0.7, 0.9)], gamma=0.1)
        step = fl.TrainStep(
            model, optimizer, precision=options.precision, max_norm=options.max_norm, scheduler=[warmup, decay]
        )
        for epoch in range(options.epochs):
            train_loader.set_epoch(epoch)
            train_one_epoch(step, train_loader, epoch, options.print_every, say)
            evaluator = CocoEvaluator(MODELS[options.model][2], train.classes, keypoints=len(KEYPOINTS))
            say(f"epoch {epoch}: {evaluate(detector, held_out_loader, evaluator)}")


def train_one_epoch(step: fl.TrainStep, loader: fl.PrefetchLoader, epoch: int, print_every: int, say: Any) -> None:
    step.model.train()
    metrics = Smoothed()
    try:
        for number, (images, targets) in enumerate(step.epoch(loader), start=1):
            out = step(images, with_visibility(targets))
            metrics.add({"loss": out.loss, **out.losses})
            if number % print_every == 0 or number == len(loader):
                rate = step.optimizer.param_groups[0]["lr"]
                say(f"epoch {epoch}, {number}/{len(loader)}: lr {rate:.2g}, {metrics.line()}")
    except FloatingPointError as error:  # a loss was not finite, on this rank or another; the error lists its terms
        raise SystemExit(f"training is stopped: {error}") from None


@torch.inference_mode()
def evaluate(detector: nn.Module, loader: fl.PrefetchLoader, evaluator: CocoEvaluator) -> str:
    """Return a line with the average precision over all ranks' images, and the seconds that it took."""
    detector.eval()
    model_time = evaluator_time = 0.0
    for images, targets in loader:
        start = time_on(loader.device)
        predictions = detector(images)
        predicted = time_on(loader.device)
        evaluator.update(predictions, with_visibility(targets))
        model_time, evaluator_time = model_time + predicted - start, evaluator_time + time.perf_counter() - predicted
    start = time.perf_counter()
    results = evaluator.compute()
    evaluator_time += time.perf_counter() - start
    results |= {"seconds of the model": model_time, "of the evaluator": evaluator_time}
    return ", ".join(f"{name} {value:.3g}" for name, value in results.items())


class Smoothed:
    """Metrics since the last line, kept on the device; only ``line`` waits for the device and reduces over ranks."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.rows: list[Tensor] = []
        self.start = time.perf_counter()

    def add(self, metrics: dict[str, Tensor]) -> None:
        self.names = list(metrics)
        self.rows.append(torch.stack(list(metrics.values())).float())

    def line(self) -> str:
        rows = torch.stack(self.rows)
        if distributed.is_initialized():
            distributed.all_reduce(rows)
            rows /= distributed.get_world_size()
        medians = zip(self.names, rows.median(0).values.tolist(), strict=True)
        seconds = (time.perf_counter() - self.start) / len(rows)
        self.rows, self.start = [], time.perf_counter()
        return ", ".join(f"{name} {value:.4f}" for name, value in medians) + f", {seconds:.3f} s a batch"


def make_data(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the data sets of images to train on and of held-out ones."""
    if options.data is None:
        return tuple(
            Pasted(images, split, seed=options.seed)
            for split, images in {"train": options.images, "held_out": options.held_out}.items()
        )
    masks = "segm" in MODELS[options.model][2]
    return tuple(CocoFiles(options.data, split, masks=masks) for split in ("train2017", "val2017"))


def make_detector(options: argparse.Namespace, classes: int) -> nn.Module:
    model, arguments, _ = MODELS[options.model]
    # torchvision's default, frozen batch norm, is meant for pretrained weights; from random weights it does not train.
    backbone = resnet_fpn_backbone(
        backbone_name=options.backbone, weights=None, norm_layer=nn.BatchNorm2d, trainable_layers=5
    )
    proposals = {f"rpn_{when}_nms_top_n_{mode}": 500 for when in ("pre", "post") for mode in ("train", "test")}
    return model(
        backbone,
        num_classes=classes + 1,
        min_size=options.size,
        max_size=2 * options.size,
        box_batch_size_per_image=options.proposals,
        box_detections_per_img=10,
        **proposals,
        **arguments,
    )


def make_loaders(
    train: Dataset, held_out: Dataset, options: argparse.Namespace, device: torch.device, rank: int, ranks: int
) -> tuple[fl.PrefetchLoader, fl.PrefetchLoader]:
    """Return the loaders of this rank's training and held-out images."""
    common = {
        "batch_size": options.batch_size,
        "num_workers": options.workers,
        # COCO's boxes are for images as they are stored.
        "collate_fn": lists if options.data is None else partial(fl.collate, upright=False),
        "persistent_workers": options.workers > 0,
    }
    train_loader = DataLoader(
        train, sampler=DistributedSampler(train, ranks, rank, seed=options.seed), drop_last=True, **common
    )
    held_out_loader = DataLoader(held_out, sampler=range(rank, len(held_out), ranks), **common)  # each image once
    decode = [] if options.data is None else [T.DecodeJpeg()]
    to_floats = T.Compose([*decode, T.Normalize([0, 0, 0], [1, 1, 1])])  # from 0 to 1; the models normalise
    augment = T.Compose([*decode, T.RandomHorizontalFlip(), T.Normalize([0, 0, 0], [1, 1, 1])])
    return (
        fl.PrefetchLoader(train_loader, transform=augment, device=device, seed=options.seed),
        fl.PrefetchLoader(held_out_loader, transform=to_floats, device=device),
    )


def lists(samples: list[tuple[Tensor, dict]]) -> tuple[list[Tensor], list[dict]]:
    images, targets = zip(*samples, strict=True)
    return list(images), list(targets)


def with_visibility(targets: list[dict]) -> list[dict]:
    """Return targets whose keypoints, if they have any, are x, y and visibility, which is 1 for all of them."""
    if "keypoints" not in targets[0]:
        return targets
    return [target | {"keypoints": nn.functional.pad(target["keypoints"], (0, 1), value=1)} for target in targets]


@contextmanager
def processes() -> Iterator[tuple[torch.device, int, int]]:
    """Yield this process's device, its rank, and the number of ranks: those torchrun has started, else one."""
    accelerator = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if "LOCAL_RANK" not in os.environ:
        yield accelerator, 0, 1
        return
    if accelerator.type != "cpu":
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group()
    try:
        yield accelerator, distributed.get_rank(), distributed.get_world_size()
    finally:
        distributed.destroy_process_group()


def time_on(device: torch.device) -> float:
    """Wait until the device has done all work, and return the time."""
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()


def parsed_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", choices=MODELS, default="faster_rcnn")
    add("--backbone", default="resnet18", help="a ResNet of torchvision")
    add("--data", type=Path, help="a folder of COCO's; default: photographs with pasted objects")
    add("--images", type=int, default=4000, help="training images an epoch")
    add("--held-out", type=int, default=300, help="images to evaluate on")
    add("--epochs", type=int, default=5)
    add("--batch-size", type=int, default=16, help="images a rank")
    add("--size", type=int, default=256, help="shorter side of an image in the model, in pixels")
    add("--proposals", type=int, default=64, help="proposals that an image's losses are computed of")
    add("--lr", type=float, default=0.02, help="learning rate, for updates of 16 images over all ranks")
    add("--max-norm", type=float, default=10.0, help="norm to clip gradients to")
    add("--precision", choices=["auto", "fp32", "bf16", "fp16"], default="auto")
    add("--workers", type=int, default=4, help="worker processes a rank")
    add("--print-every", type=int, default=50, help="batches between two lines of the log")
    add("--seed", type=int, default=0)
    add("--tiny", action="store_true", help="a few small images, to see that everything runs")
    if parser.parse_known_args()[0].tiny:
        parser.set_defaults(**TINY)
    options = parser.parse_args()
    if options.data is not None and options.model == "keypoint_rcnn":
        parser.error("--data has no keypoints here: mirrored people need their left and right keypoints exchanged")
    return options


if __name__ == "__main__":
    main()
