"""How the subjects that are sources train, on ranks that share no model: some ranks may have more batches."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

import fastload as fl
from tests.integrations.contract import ACCUMULATE, Model, Record, Scenario, image


def jpeg() -> bytes:
    """The contract's image as a file."""
    file = io.BytesIO()
    Image.fromarray(image().permute(1, 2, 0).numpy()).save(file, "JPEG")
    return file.getvalue()


def join_ranks() -> int:
    """The rank, in a process group that there is from now on."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    return torch.distributed.get_rank()


def train(scenario: Scenario, record: Record, loader: Any, set_epoch: Callable[[int], None] | None = None) -> None:
    """Train on batches of "image" and "label"; without fastload, whose files nobody has decoded, on grey images.

    ``set_epoch`` is that of the source, for a loader without fastload.
    """
    model = Model()
    step = fl.TrainStep(
        model, torch.optim.SGD(model.parameters(), 0.1), torch.nn.CrossEntropyLoss(), accumulate=ACCUMULATE
    )
    first = 0
    if scenario.resume is not None:
        loader.load_state_dict(scenario.resume)
        first = loader.epoch
    for epoch in range(first, scenario.epochs):
        record.begin_epoch()
        if scenario.wrapped:
            loader.set_epoch(epoch)
        elif set_epoch is not None:
            set_epoch(epoch)
        counted = torch.zeros(())
        for batch in step.epoch(loader):
            labels = batch["label"]
            images = image().float().expand(len(labels), 3, 8, 8)
            if scenario.wrapped:  # a list where they were files, whose sizes might differ
                images = torch.stack(tuple(batch["image"]))
            record.saw(images, labels)
            before = step.updates
            step(images, labels)
            if step.updates > before:
                record.updated()
            counted += len(labels)
            if len(record.epochs[-1]) == scenario.save_after:
                record.state = loader.state_dict()
                return
            if len(record.epochs[-1]) == scenario.leave_after and epoch == 0:
                break
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(counted)
        record.counted.append(int(counted))
