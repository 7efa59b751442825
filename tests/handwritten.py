"""The training loop written by hand, with all that ``TrainStep`` does, and small things to train by it."""

import copy
import warnings
from dataclasses import dataclass, field

import torch
from torch import nn

from fastload.streams import AsyncReadback
from fastload.training.step import TrainStep

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class SmallNet(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(128, 5),
        )


class Delegating:
    """Hands on to a model what it is asked for, and is no module."""

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, images):
        return self.model(images)


class TinyNet(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(192, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))


class LateReadout(AsyncReadback):
    """Reads as on a GPU: nothing is known at once."""

    def __init__(self, values):
        super().__init__(values)
        self.at_once = False


def make_batches(number, device="cpu"):
    return [(torch.randn(4, 3, 8, 8, device=device), torch.randint(0, 5, (4,), device=device)) for _ in range(number)]


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, **options)


def halving(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


@dataclass
class Trained:
    losses: list = field(default_factory=list)
    updates: int = 0
    ema: nn.Module | None = None


def handwritten(
    model,
    optimizer,
    batches,
    *,
    loss_fn=nn.functional.cross_entropy,
    precision="fp32",
    accumulate=1,
    max_norm=None,
    clip_value=None,
    scheduler=None,
    ema=None,
    scaler=None,
):
    """Train as one would without ``TrainStep``, reading the scale to know of skipped updates."""
    device = next(model.parameters()).device.type
    scaler = scaler or torch.amp.GradScaler(device, enabled=precision == "fp16")
    # fp16 on the CPU is fp32, with a scaler all the same if one was given
    dtype = torch.float32 if (device, precision) == ("cpu", "fp16") else DTYPES[precision]
    trained = Trained(ema=copy.deepcopy(model))
    for number, (images, labels) in enumerate(batches, start=1):
        first = (number - 1) // accumulate * accumulate
        size = min(accumulate, len(batches) - first)
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            loss = loss_fn(model(images), labels)
        scaler.scale(loss / size).backward()
        trained.losses.append(loss.detach())
        if number < first + size:
            continue
        if max_norm is not None or clip_value is not None:
            scaler.unscale_(optimizer)
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if clip_value is not None:
            nn.utils.clip_grad_value_(model.parameters(), clip_value)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if scaler.get_scale() < scale:
            continue
        trained.updates += 1
        if scheduler is not None:
            scheduler.step()
        if ema is not None:
            for average, weight in zip(trained.ema.state_dict().values(), model.state_dict().values(), strict=True):
                average.lerp_(weight, 1 - ema) if weight.is_floating_point() else average.copy_(weight)
    return trained


def scaled_step(model, optimizer, scaler, loss_fn=nn.functional.cross_entropy, **settings):
    """A step with a scaler at work: in fp16, which on the CPU is fp32."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="precision='fp16' needs an accelerator")
        return TrainStep(model, optimizer, loss_fn, precision="fp16", scaler=scaler, **settings)


def assert_same_weights(model, other):
    for (name, weight), (_, expected) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(weight, expected), name


OVERFLOW = 1e35  # times a scale of 2**20 is more than float32 holds


def weighted_cross_entropy(output, labels_and_weight):
    labels, weight = labels_and_weight
    return nn.functional.cross_entropy(output, labels) * weight


def overflowing(batches, at):
    """Give the batches a weight, such that the losses are finite, and the scaled gradients of some are not."""
    return [(images, (labels, OVERFLOW if place in at else 1.0)) for place, (images, labels) in enumerate(batches)]
