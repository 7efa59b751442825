"""ResNet-50 on several GPUs, one process each, from JPEG files: one file to copy and start from.

Command:   torchrun --nproc-per-node 8 examples/multi_gpu.py --data imagenet    train/ and val/ as ImageFolder has them
           torchrun --nproc-per-node 2 examples/multi_gpu.py    4,096 sample photographs, made in ./photographs
           torchrun --nproc-per-node 2 examples/multi_gpu.py --tiny    a small model and few images, for CPUs too
           If it is stopped or killed, the same command resumes from the end of the last epoch, on any number
           of GPUs.
Hardware:  two NVIDIA H200 of one host, 24 cores; for --tiny two cores
Result:    the samples, --batch-size 512 --epochs 20: 5,060 img/s by both, not compiled; held-out accuracy 1.00
           --tiny: 8 updates in under 40 s
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision.models import resnet50, shufflenet_v2_x0_5

import fastload as fl
from fastload import transforms as T  # noqa: N812  (as torchvision's users write it)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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
    parser.add_argument("--checkpoint", type=Path, default=Path("multi_gpu.pt"), help="to write, and to resume from")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--steps", type=int, default=math.inf, help="stop after so many updates; run again to resume")
    parser.add_argument("--batch-size", type=int, default=2048, help="images an update, over all ranks")
    parser.add_argument("--per-pass", type=int, default=256, help="images in one forward pass, on each rank")
    parser.add_argument("--workers", type=int, default=4, help="processes that read files, for each rank")
    parser.add_argument("--tiny", action="store_true")
    if parser.parse_args().tiny:  # its defaults
        parser.set_defaults(data=Path("photographs-tiny"), checkpoint=Path("multi_gpu-tiny.pt"))
        parser.set_defaults(epochs=2, batch_size=16, per_pass=4, workers=1)
    return parser.parse_args()


def begin() -> torch.device:
    """Join the other ranks; torchrun's environment says where they are."""
    if "RANK" not in os.environ:
        command = f"torchrun --nproc-per-node {max(1, torch.accelerator.device_count())} {shlex.join(sys.argv)}"
        raise SystemExit(f"this program runs one process a GPU and needs torchrun to start them. Type: {command}")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = torch.device(accelerator.type, int(os.environ["LOCAL_RANK"])) if accelerator else torch.device("cpu")
    if accelerator:
        torch.accelerator.set_device_index(device.index)  # to which the loaders prefetch
    backend = distributed.get_default_backend_for_device(device)
    distributed.init_process_group(backend, device_id=device if accelerator else None)
    return device


def make_loaders(args: argparse.Namespace, size: int, device: torch.device) -> tuple[fl.PrefetchLoader, ...]:
    """Return loaders of this rank's share of the training images and of the held-out images."""
    train, held_out = (fl.data.ImageFolder(args.data / split) for split in ("train", "val"))
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    last = T.Normalize(MEAN, STD, dtype=dtype, memory_format=torch.channels_last)
    augment = T.Compose([T.DecodeJpeg(), T.RandomResizedCrop(size), T.RandomHorizontalFlip(), last])
    center = T.Compose([T.DecodeJpeg(), T.Resize(size * 8 // 7), T.CenterCrop(size), last])
    # A DistributedSampler would count some images twice, to give all ranks the same number.
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    share = Subset(held_out, range(rank, len(held_out), ranks))
    options = {"num_workers": args.workers, "collate_fn": fl.collate, "pin_memory": device.type != "cpu"}
    mine = DataLoader(train, args.per_pass, sampler=DistributedSampler(train), **options)
    mine_held_out = DataLoader(share, args.per_pass, **options)
    evaluating = fl.PrefetchLoader(mine_held_out, transform=center, shard=(rank, ranks))
    return fl.PrefetchLoader(mine, transform=augment), evaluating


@torch.inference_mode()
def evaluate(model: nn.Module, loader: fl.PrefetchLoader, precision: str, device: torch.device) -> list[float]:
    """Loss and accuracy over the images of all ranks. The model is the bare one: ranks differ in batches."""
    for buffer in model.buffers():  # batch norm's; since the last pass each rank has its own
        distributed.broadcast(buffer, 0)
    model.eval()
    sums = torch.zeros(2, device=device)
    for images, labels in loader:
        with torch.autocast(device.type, DTYPES[precision], enabled=precision != "fp32"):
            output = model(images).float()
        sums[0] += nn.functional.cross_entropy(output, labels, reduction="sum")
        sums[1] += (output.argmax(1) == labels).sum()
    model.train()
    distributed.all_reduce(sums)
    return (sums / len(loader.dataset.dataset)).tolist()


def save(path: Path, states: dict) -> None:
    """Replace the file at once, so that a kill leaves the old one or the new one. All ranks have the same state."""
    if distributed.get_rank() == 0:
        torch.save({name: each.state_dict() for name, each in states.items()}, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)


def make_step(model: nn.Module, args: argparse.Namespace, passes: int, updates: int) -> fl.TrainStep:
    lr, warm_up = 0.1 * args.batch_size / 256, 5 / 90 * updates  # five epochs; then down along a cosine
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, nesterov=True, weight_decay=5e-5, fused=True)
    schedule = LambdaLR(optimizer, lambda done: min((done + 1) / warm_up, (1 + math.cos(math.pi * done / updates)) / 2))
    return fl.TrainStep(model, optimizer, nn.CrossEntropyLoss(), accumulate=passes, scheduler=schedule)


def train(args: argparse.Namespace, device: torch.device, ranks: int) -> None:
    passes, rest = divmod(args.batch_size, args.per_pass * ranks)
    if rest:
        raise SystemExit(f"--batch-size must be a multiple of {ranks} ranks x {args.per_pass}; got {args.batch_size}")
    torch.manual_seed(0)
    loader, held_out = make_loaders(args, 64 if args.tiny else 224, device)
    network = shufflenet_v2_x0_5 if args.tiny else resnet50
    bare = network(num_classes=len(loader.dataset.classes)).to(device, memory_format=torch.channels_last)
    model = DistributedDataParallel(bare, device_ids=None if device.type == "cpu" else [device])
    updates = args.epochs * math.ceil(len(loader) / passes)  # as many on any number of ranks
    step = make_step(model, args, passes, updates)
    states = {"model": bare, "optimizer": step.optimizer, "step": step, "loader": loader}  # to be loaded in this order
    saved = torch.load(args.checkpoint, map_location="cpu") if args.checkpoint.exists() else {}
    for name in saved:
        states[name].load_state_dict(saved[name])
    done, end = step.updates, min(updates, args.steps)
    while done < end:
        loader.set_epoch(loader.epoch)  # the sampler's, too
        images_seen, since = 0, time.perf_counter()
        for images, labels in step.epoch(loader):
            images_seen += len(images) * ranks
            done += step(images, labels).stepped
            if done == end:
                break
        if images_seen == 0:  # it was stopped at the very end of an epoch
            continue
        step.flush()  # waits for the device, so the time is that of all the work
        speed = images_seen / (time.perf_counter() - since)
        save(args.checkpoint, states)
        loss, accuracy = evaluate(bare, held_out, step.precision, device)
        if distributed.get_rank() == 0:
            print(f"update {done}: loss {loss:.4f}, accuracy {accuracy:.4f}, {speed:,.0f} img/s by {ranks}", flush=True)


def main() -> None:
    args, device = parse(), begin()
    if distributed.get_rank() == 0 and not args.data.exists():
        fl.data.sample_data(args.data, 60 if args.tiny else 4096)
    distributed.barrier()
    train(args, device, distributed.get_world_size())
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
