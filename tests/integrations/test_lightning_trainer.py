"""What Lightning's Trainer does with loaders, on one rank: the callback ``Prefetch`` in each of its stages."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.seed import pl_worker_init_function
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, IterableDataset

import fastload as fl
from fastload import transforms as T
from fastload.integrations.lightning import Prefetch
from tests.integrations.contract import MEAN, SAMPLES, STD, Numbered, Record, image, transform
from tests.integrations.test_lightning import Module, trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec", "ignore:.*does not have many workers", "ignore:.*directory"
)


class InterruptedRunError(Exception):
    pass


class Scheduled(Module):
    """Asks for the number of steps while optimizers are made, so loaders are made before a checkpoint is loaded."""

    stop_at: int | None = None

    def on_train_batch_start(self, *_: Any) -> None:
        if self.global_step == self.stop_at:
            raise InterruptedRunError

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        steps = self.trainer.estimated_stepping_batches
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=int(steps))]


class Stream(IterableDataset):
    """An iterable without a length."""

    def __iter__(self):
        return ((image(), number) for number in range(SAMPLES))


def shuffled() -> DataLoader:
    return DataLoader(Numbered(), 4, shuffle=True)


def fit(home, module: Module, loader: Any, *callbacks: Any, resume: Any = None, **settings: Any) -> list[Any]:
    """Train, and return the batches of all epochs."""
    trainer(home, Prefetch(train=transform()), *callbacks, **{"max_epochs": 3, **settings}).fit(
        module, loader, ckpt_path=resume
    )
    return list(chain(*module.record.epochs))


RESUMED: dict[str, tuple[int, Callable[[], DataLoader], dict[str, Any]]] = {
    "in the middle of an epoch": (14, shuffled, {}),
    "at an epoch's last step": (10, shuffled, {}),
    "at the last step of a limited epoch": (5, shuffled, {"limit_train_batches": 5}),
    "where loaders are made anew": (14, shuffled, {"reload_dataloaders_every_n_epochs": 1}),
    "in an iterable without a length": (14, lambda: DataLoader(Stream(), 4), {}),
}


@pytest.mark.parametrize(
    ("module", "case"),
    [(Module, case) for case in RESUMED] + [(Scheduled, case) for case in RESUMED if "without a length" not in case],
)
def test_a_run_resumes_with_the_same_pixels(module, case, tmp_path):
    stop, loader, settings = RESUMED[case]
    torch.manual_seed(0)
    whole = fit(tmp_path, module(Record()), loader(), **settings)

    torch.manual_seed(0)
    saved = ModelCheckpoint(tmp_path, "state", every_n_train_steps=stop, save_top_k=1)
    begun = Scheduled(Record())
    begun.stop_at = stop
    begun.configure_optimizers = lambda: module.configure_optimizers(begun)  # type: ignore[method-assign]
    with pytest.raises(InterruptedRunError):
        fit(tmp_path, begun, loader(), saved, **settings)
    before = list(chain(*begun.record.epochs))

    torch.manual_seed(1)
    again = ModelCheckpoint(tmp_path, "state", every_n_train_steps=stop)
    after = fit(tmp_path, module(Record()), loader(), again, resume=tmp_path / "state.ckpt", **settings)
    assert before + after == whole


def test_an_epochs_end_resumes_where_loaders_are_made_anew(tmp_path):
    settings = {"reload_dataloaders_every_n_epochs": 1}
    torch.manual_seed(0)
    whole = fit(tmp_path, Module(Record()), shuffled(), **settings)
    torch.manual_seed(0)
    saved = ModelCheckpoint(tmp_path, "state", save_on_train_epoch_end=True)
    before = fit(tmp_path, Module(Record()), shuffled(), saved, max_epochs=1, **settings)
    again = ModelCheckpoint(tmp_path, "state", save_on_train_epoch_end=True)
    after = fit(tmp_path, Module(Record()), shuffled(), again, resume=tmp_path / "state.ckpt", **settings)
    assert before + after == whole


def test_loaders_made_anew_augment_differently_and_without_a_warning(tmp_path, recwarn):
    module = Module(Record())
    fit(tmp_path, module, DataLoader(Numbered(), 4), reload_dataloaders_every_n_epochs=1)
    brightness = [[batch.brightness for batch in epoch] for epoch in module.record.epochs]
    assert brightness[0] != brightness[1] != brightness[2]
    assert not [each for each in recwarn if "PrefetchLoader" in str(each.message)]


def test_overfit_batches_repeats_the_first_batches_in_order(tmp_path):
    module = Module(Record())
    with pytest.warns(UserWarning, match="turning off the train dataloader shuffling"):
        fit(tmp_path, module, shuffled(), overfit_batches=2)
    assert [module.record.numbers(epoch) for epoch in range(3)] == [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 3


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_serves_several_fits(persistent, tmp_path):
    loader = DataLoader(Numbered(), 4, num_workers=1, persistent_workers=persistent)
    for _ in range(2):
        assert len(fit(tmp_path, Module(Record()), loader, max_epochs=1, limit_train_batches=3)) == 3
    assert loader._iterator is None  # the workers have ended, as with Lightning alone


def test_workers_are_seeded_by_lightning(tmp_path, monkeypatch):
    monkeypatch.setenv("PL_SEED_WORKERS", "1")
    loader = shuffled()
    fit(tmp_path, Module(Record()), loader, max_epochs=1)
    assert loader.worker_init_fn.func is pl_worker_init_function


class Stages(pl.LightningModule):
    """Notes the first value of each stage's batches, which tells their transform."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(1, 1)
        self.seen: dict[str, set[float]] = {}

    def note(self, batch: Any) -> None:
        stage = self.trainer.state.stage
        assert stage is not None
        self.seen.setdefault(stage.value, set()).add(batch[0].flatten()[0].item())

    def training_step(self, batch: Any) -> torch.Tensor:
        for one in batch.values() if isinstance(batch, dict) else [batch]:
            self.note(one)
        return self.head(torch.ones(1)).sum()

    def validation_step(self, batch: Any, *_: int, **__: int) -> None:
        self.note(batch)

    def test_step(self, batch: Any) -> None:
        self.note(batch)

    def predict_step(self, batch: Any) -> Any:
        self.note(batch)
        return batch[1]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class Data(pl.LightningDataModule):
    def train_dataloader(self) -> Any:
        return {"long": shuffled(), "short": DataLoader(Numbered(), 8)}

    def val_dataloader(self) -> Any:
        return [DataLoader(Numbered(), 4), DataLoader(Numbered(), 8)]

    def test_dataloader(self) -> Any:
        return DataLoader(Numbered(), batch_size=4)

    def predict_dataloader(self) -> Any:
        return DataLoader(Numbered(), batch_size=4)


def test_each_stage_has_its_transform(tmp_path):
    """The images are of 100; training inverts them to 155."""
    prefetch = Prefetch(train=T.RandomInvert(1.0))
    module, runs = Stages(), trainer(tmp_path, prefetch, max_epochs=2, num_sanity_val_steps=1)
    runs.fit(module, datamodule=Data())
    runs.validate(module, datamodule=Data(), verbose=False)
    runs.test(module, datamodule=Data(), verbose=False)
    predicted = runs.predict(module, datamodule=Data())
    assert module.seen == {
        "train": {155.0},
        "sanity_check": {100.0},
        "validate": {100.0},
        "test": {100.0},
        "predict": {100.0},
    }
    assert torch.cat(predicted).tolist() == list(range(SAMPLES))  # type: ignore[arg-type]
    assert "process_dataloader" not in vars(runs.strategy)


def test_a_prefetch_loader_of_the_users_is_refused(tmp_path):
    wrapped = fl.PrefetchLoader(shuffled(), MEAN, STD, device="cpu")
    with pytest.raises(TypeError, match="return the loader that it wraps"):
        fit(tmp_path, Module(Record()), wrapped)


def test_without_the_callback_a_prefetch_loader_trains_on_one_rank(tmp_path):
    module = Module(Record())
    wrapped = fl.PrefetchLoader(shuffled(), transform=transform(), device="cpu")
    trainer(tmp_path, max_epochs=2).fit(module, wrapped)
    for epoch in range(2):
        assert sorted(chain(*module.record.numbers(epoch))) == list(range(SAMPLES))


def test_arguments_are_checked_when_the_callback_is_made():
    with pytest.raises(ValueError, match="depth"):
        Prefetch(depth=0)
    with pytest.raises(TypeError, match="log_input"):
        Prefetch(log_input="yes")


def test_how_long_training_waits_is_logged_where_it_is_asked_for(tmp_path):
    logger = CSVLogger(tmp_path)
    settings = {"max_epochs": 2, "logger": logger, "log_every_n_steps": 2}
    trainer(tmp_path, Prefetch(log_input=True), **settings).fit(Module(Record()), shuffled())
    header, *rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert "input/stalled" in header
    assert len(rows) >= 2


def test_a_limited_epochs_end_in_an_iterable_without_a_length_is_followed_by_the_next_epoch(tmp_path):
    settings = {"limit_train_batches": 2}
    whole = fit(tmp_path, Module(Record()), DataLoader(Stream(), 4), **settings)
    saved = ModelCheckpoint(tmp_path, "state", save_on_train_epoch_end=True)
    before = fit(tmp_path, Module(Record()), DataLoader(Stream(), 4), saved, max_epochs=1, **settings)
    again = ModelCheckpoint(tmp_path, "state", save_on_train_epoch_end=True)
    after = fit(tmp_path, Module(Record()), DataLoader(Stream(), 4), again, resume=tmp_path / "state.ckpt", **settings)
    assert before + after == whole
