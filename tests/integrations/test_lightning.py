"""Lightning's Trainer: the callback ``Prefetch`` around loaders that Lightning prepared, on two ranks."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, DistributedSampler

from fastload.integrations.lightning import Prefetch
from tests.integrations.contract import ACCUMULATE, BATCH, Contract, Model, Numbered, Record, Scenario, transform

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(LightningModule):
    """Trains the contract's model, and notes what it saw."""

    def __init__(self, record: Record, leave_after: int | None = None):
        super().__init__()
        self.model = Model()
        self.record = record
        self.leave_after = leave_after
        self.epoch: int | None = None

    def on_train_batch_start(self, _: Any, batch_idx: int) -> int | None:
        return -1 if self.current_epoch == 0 and batch_idx == self.leave_after else None

    def training_step(self, batch: Any) -> torch.Tensor:
        images, labels = batch
        if self.epoch != self.current_epoch:
            self.epoch = self.current_epoch
            self.record.begin_epoch()
        self.record.saw(images.float(), labels)
        self.log("samples", float(len(labels)), on_step=False, on_epoch=True, reduce_fx="sum", sync_dist=True)
        return torch.nn.functional.cross_entropy(self.model(images.float()), labels)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.record.updated()

    def on_train_epoch_end(self) -> None:
        self.record.counted.append(int(self.trainer.callback_metrics["samples"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class Save(Callback):
    """Save a checkpoint after each update; unlike ModelCheckpoint it has no state, and warns of none."""

    def __init__(self, path: Path):
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step:
            trainer.save_checkpoint(self.path)


def trainer(home: Path, *callbacks: Any, **settings: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    checkpoints = any(isinstance(each, ModelCheckpoint) for each in callbacks)
    return Trainer(
        **{
            "accelerator": "cpu",
            "devices": 1,
            "default_root_dir": home,
            "callbacks": list(callbacks),
            "enable_checkpointing": checkpoints,
            "num_sanity_val_steps": 0,
            **quiet,
            **settings,
        }
    )


class TestLightning(Contract):
    subject, library, ranks = "Lightning", "lightning", 2

    @staticmethod
    def train(scenario: Scenario, record: Record) -> None:
        data = Numbered(scenario.first_bad)
        sampler = None if scenario.shuffle else DistributedSampler(data, 2, int(os.environ["RANK"]), shuffle=False)
        loader = DataLoader(data, BATCH, sampler=sampler, num_workers=1)
        callbacks = [Prefetch(train=transform())] if scenario.wrapped else []
        settings: dict[str, Any] = {"max_epochs": scenario.epochs, "accumulate_grad_batches": ACCUMULATE}
        if scenario.save_after:
            settings["max_steps"] = 1  # whose checkpoint is that after ACCUMULATE batches
            callbacks.append(Save(scenario.home / "state.ckpt"))
            record.state = str(scenario.home / "state.ckpt")
        two = trainer(scenario.home, *callbacks, devices=2, strategy="ddp", **settings)
        two.fit(Module(record, scenario.leave_after), loader, ckpt_path=scenario.resume)
