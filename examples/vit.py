"""ViT-B/16 from scratch by DeiT's recipe, from JPEG files to a checkpoint: one file to copy and start from.

Command:   python examples/vit.py --data imagenet    with train/ and val/ as ImageFolder has them
           python examples/vit.py                    4,096 sample photographs of ten classes, made in ./photographs
           python examples/vit.py --tiny             a small model and few images, for CPUs too
           If it is stopped or killed, the same command resumes from the last checkpoint.
Hardware:  one NVIDIA H200, 16 cores; for --tiny two cores
Result:    the samples, --epochs 60 --every 240: 1,898 img/s, not compiled; held-out accuracy 1.00, of the average too
           --tiny: 18 updates in under 25 s, held-out loss 2.230 (by chance 2.303)

The recipe: Training data-efficient image transformers & distillation through attention, Touvron et al., 2021, table 9.
Not here: stochastic depth, which torchvision's ViT lacks, repeated augmentation, noise on magnitudes. New: clipping.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy
from torchvision.models import VisionTransformer

import fastload as fl
from fastload import transforms as T  # noqa: N812  (as torchvision's users write it)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
BASE = {"image_size": 224, "patch_size": 16, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072}
TINY = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}


def folder(path: str) -> Path:
    """Return ``--data`` as given, which must exist; the default folder is made if it does not."""
    if not Path(path).is_dir():
        raise argparse.ArgumentTypeError(
            f"there is no folder {path}. Pass one with train/ and val/, or make sample data there: "
            f"fastload sample-data {path}"
        )
    return Path(path)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=folder, default=Path("photographs"), help="default: sample photographs")
    parser.add_argument("--checkpoint", type=Path, default=Path("vit.pt"), help="to write, and to resume from")
    parser.add_argument("--every", type=int, default=1000, help="updates between checkpoints with evaluation")
    parser.add_argument("--log", type=int, default=50, help="updates between lines of the log")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--steps", type=int, default=math.inf, help="stop after so many updates; run again to resume")
    parser.add_argument("--batch-size", type=int, default=256, help="images in one forward pass")
    parser.add_argument("--accumulate", type=int, default=1, help="batches an update; DeiT updates with 1,024 images")
    parser.add_argument("--lr", type=float, default=5e-4, help="for 512 images an update; scaled linearly")
    parser.add_argument("--workers", type=int, default=4, help="processes that read files")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch.compile")
    parser.add_argument("--tiny", action="store_true")
    if parser.parse_args().tiny:
        parser.set_defaults(data=Path("photographs-tiny"), checkpoint=Path("vit-tiny.pt"))
        parser.set_defaults(every=6, log=3, epochs=3, batch_size=8, lr=0.1, workers=2)
    return parser.parse_args()


def make_loaders(args: argparse.Namespace, size: int, device: torch.device) -> tuple[fl.PrefetchLoader, ...]:
    """Return loaders of the training images, augmented and with soft labels, and of the held-out images."""
    train, held_out = (fl.data.ImageFolder(args.data / split) for split in ("train", "val"))
    normalize = T.Normalize(MEAN, STD, dtype=torch.float32 if device.type == "cpu" else torch.bfloat16)
    augment = T.Compose(
        [
            T.DecodeJpeg(),
            T.RandomResizedCrop(size, interpolation="bicubic"),
            T.RandomHorizontalFlip(),
            T.RandAugment(2, magnitude=27, interpolation="bilinear"),  # of 30, where DeiT has 9 of 10
            normalize,
            T.RandomErasing(0.25, value="random"),
            T.MixUpCutMix(0.8, 1.0, num_classes=len(train.classes), label_smoothing=0.1),
        ]
    )
    center = T.Compose([T.DecodeJpeg(), T.Resize(size * 8 // 7, "bicubic"), T.CenterCrop(size), normalize])
    options = {"num_workers": args.workers, "collate_fn": fl.collate, "pin_memory": device.type != "cpu"}
    # Its own generator, as evaluation draws random numbers too: the order of training does not depend on those.
    order = {"shuffle": True, "drop_last": True, "generator": torch.Generator().manual_seed(0)}
    shuffled = DataLoader(train, args.batch_size, **order, **options, persistent_workers=args.workers > 0)
    in_order = DataLoader(held_out, args.batch_size, **options)
    return fl.PrefetchLoader(shuffled, transform=augment), fl.PrefetchLoader(in_order, transform=center)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Return AdamW's groups: no weight decay for biases, norms, the class token and the position embedding."""
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[parameter.ndim > 1 and not name.endswith(("class_token", "pos_embedding"))].append(parameter)
    return [{"params": groups[True], "weight_decay": weight_decay}, {"params": groups[False], "weight_decay": 0.0}]


def warm_up_then_cosine(updates: int) -> Callable[[int], float]:
    """Return the schedule's factor: a warm-up of 5 epochs in 300, then a cosine down to 0.01."""
    warm_up = max(1, updates // 60)

    def share(update: int) -> float:
        if update < warm_up:
            return (update + 1) / warm_up
        return 0.01 + 0.99 * (1 + math.cos(math.pi * (update - warm_up) / max(1, updates - warm_up))) / 2

    return share


class MeanLoss(Metric):
    """The mean loss over samples, on the device until it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("samples", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        self.total += nn.functional.cross_entropy(outputs, labels, reduction="sum")
        self.samples += len(labels)

    def compute(self) -> Tensor:
        return self.total / self.samples


def make_step(args: argparse.Namespace, model: nn.Module, updates: int) -> fl.TrainStep:
    lr = args.lr * args.batch_size * args.accumulate / 512
    optimizer = torch.optim.AdamW(parameter_groups(model, weight_decay=0.05), lr=lr, fused=True)
    return fl.TrainStep(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        accumulate=args.accumulate,
        max_norm=1.0,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up_then_cosine(updates)),
        ema=1 - 1 / max(2, updates / 15),  # DeiT's 0.99996 averages over a fifteenth of its run
    )


def save(path: Path, states: dict[str, Any]) -> None:
    """Replace the file at once, so that a kill at any time leaves the old one or the new one."""
    torch.save({name: each.state_dict() for name, each in states.items()}, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def report(update: int, step: fl.TrainStep, held_out: Iterable, classes: int, console: Console) -> None:
    """Evaluate the weights and their moving average."""
    metrics = {"loss": MeanLoss(), "accuracy": MulticlassAccuracy(classes, average="micro", validate_args=False)}
    results = {"weights": fl.evaluate(step.model, held_out, metrics, precision=step.precision)}
    with step.ema.applied():
        results["average"] = fl.evaluate(step.model, held_out, metrics, precision=step.precision)
    for name, result in results.items():
        console.print(f"update {update}: {name}: loss {result['loss']:.4f}, accuracy {result['accuracy']:.4f}")


def main() -> None:
    args = parse()
    torch.manual_seed(0)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if not args.data.exists():
        fl.data.sample_data(args.data, 60 if args.tiny else 4096)
    shape = TINY if args.tiny else BASE
    loader, held_out = make_loaders(args, shape["image_size"], device)
    classes = len(loader.dataset.classes)
    model = VisionTransformer(**shape, num_classes=classes).to(device)
    if args.compile:
        model.compile()
    updates = args.epochs * math.ceil(len(loader) / args.accumulate)
    step = make_step(args, model, updates)
    states = {"model": model, "optimizer": step.optimizer, "step": step, "loader": loader}  # to be loaded in this order
    saved = torch.load(args.checkpoint, map_location="cpu") if args.checkpoint.exists() else {}
    for name in saved:
        states[name].load_state_dict(saved[name])
    done, end = step.updates, min(updates, args.steps)
    rates, images_seen, since = [], 0, time.perf_counter()
    with Progress() as progress:
        console, bar = progress.console, progress.add_task("training", total=end, completed=done)
        console.print(f"on {device} in {step.precision}, from update {done} to {end} of {updates}")
        while done < end:
            for images, labels in step.epoch(loader):
                images_seen += len(images)
                out = step(images, labels)
                if not out.stepped:
                    continue
                done += 1
                progress.update(bar, completed=done)
                if done % args.log == 0:
                    loss = out.loss.item()  # waits for the device, so the time is that of all the work
                    rates.append(images_seen / (time.perf_counter() - since))
                    console.print(f"update {done}: loss {loss:.4f}, {rates[-1]:,.0f} img/s")
                    images_seen, since = 0, time.perf_counter()
                if done % args.every == 0 or done == end:
                    save(args.checkpoint, states)
                    report(done, step, held_out, classes, console)
                    images_seen, since = 0, time.perf_counter()
                if done == end:
                    break
        if rates:
            console.print(f"{median(rates):,.0f} img/s, the median of {len(rates)}")


if __name__ == "__main__":
    main()
