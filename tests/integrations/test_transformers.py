"""Hugging Face's ``Trainer`` with ``Prefetched``: train, evaluate, predict and resume."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import fastload as fl
from fastload.integrations.transformers import Prefetched
from tests.integrations.contract import (
    ACCUMULATE,
    BATCH,
    SAMPLES,
    Contract,
    Model,
    Numbered,
    Record,
    Scenario,
    transform,
)


class Named(Numbered):
    """Samples as the ``Trainer`` takes them."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        pixels, label = super().__getitem__(number)
        return {"labels": torch.tensor(label), "pixel_values": pixels}


class Classifier(Model):
    """Returns loss and logits, and notes in ``seen`` what it got in training."""

    accepts_loss_kwargs = False

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = super().forward(pixel_values.float())
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class PrefetchedTrainer(Prefetched, Trainer):
    settings: dict[str, Any]

    def prefetch(self, loader, training):
        return fl.PrefetchLoader(
            loader, transform=transform() if training else None, device="cpu", images="pixel_values", **self.settings
        )


def trainer(home: Any, *, data: Any = None, wrapped: bool = True, callbacks: Any = (), **settings: Any) -> Trainer:
    options = {
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATE,
        "num_train_epochs": 2,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
        "optim": "adamw_torch",
    }
    arguments = TrainingArguments(output_dir=str(home), **(options | settings))
    data = data or Named()
    kind = PrefetchedTrainer if wrapped else Trainer
    made = kind(model=Classifier(), args=arguments, train_dataset=data, eval_dataset=data, callbacks=[*callbacks])
    made.settings = {}
    return made


class Noting(TrainerCallback):
    """Notes epochs and updates, and stops where the scenario says."""

    def __init__(self, scenario: Scenario, record: Record):
        self.scenario, self.record = scenario, record

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.record.begin_epoch()

    def on_step_end(self, _args, _state, control, **_):
        self.record.updated()
        batches = len(self.record.epochs[-1])
        if batches == self.scenario.save_after:
            control.should_save = control.should_training_stop = True
        if batches == self.scenario.leave_after and len(self.record.epochs) == 1:
            control.should_epoch_stop = True


class Counting:
    """Metrics: how many labels came to them."""

    @staticmethod
    def count(prediction: Any) -> dict[str, float]:
        return {"counted": len(prediction.label_ids)}


class TestTrainer(Contract):
    subject, library, ranks = "Hugging Face Trainer", "transformers", 2

    @staticmethod
    def train(scenario: Scenario, record: Record) -> None:
        # The Trainer asks for a window of batches before it trains on the first: so it leaves an epoch after whole
        # windows only, and an error comes before the window that it is in.
        accumulate = 1 if scenario.leave_after or scenario.first_bad else ACCUMULATE
        made = trainer(
            scenario.home,
            data=Named(scenario.first_bad),
            wrapped=scenario.wrapped,
            callbacks=[Noting(scenario, record)],
            gradient_accumulation_steps=accumulate,
            num_train_epochs=scenario.epochs,
            dataloader_num_workers=1,
            save_only_model=True,  # PyTorch 2.15 cannot load an optimizer's state to "cpu:0", the Trainer's device here
        )
        made.compute_metrics = Counting.count
        if not scenario.shuffle:
            made._get_train_sampler = lambda data: torch.utils.data.SequentialSampler(data)  # noqa: PLW0108
        step = made.training_step

        def noting_step(model: Any, inputs: Any, *rest: Any) -> Any:
            pixels = inputs["pixel_values"]
            record.saw(pixels.float() if scenario.wrapped else pixels, inputs["labels"])
            return step(model, inputs, *rest)

        made.training_step = noting_step
        made.train(resume_from_checkpoint=scenario.resume)
        if scenario.save_after:
            record.state = str(scenario.home / "checkpoint-1")
            return
        record.counted = [int(made.evaluate()["eval_counted"]) for _ in range(scenario.epochs)]


def test_predict_gives_each_sample_once(tmp_path):
    labels = trainer(tmp_path).predict(Named()).label_ids
    assert labels.tolist() == list(range(SAMPLES))


def test_static_batches_are_refused_where_more_are_held_than_are_valid(tmp_path):
    made = trainer(tmp_path)
    made.settings = {"static": True}
    with pytest.raises(ValueError, match="gradient_accumulation_steps=3 batches at once"):
        made.get_train_dataloader()
    made.args.gradient_accumulation_steps = 2
    assert made.get_train_dataloader().static


def test_prefetch_must_be_defined(tmp_path):
    class Without(Prefetched, Trainer):
        pass

    made = trainer(tmp_path)
    without = Without(model=made.model, args=made.args, train_dataset=Named())
    with pytest.raises(NotImplementedError, match="Without must define prefetch"):
        without.get_train_dataloader()


def test_how_long_training_waits_is_logged_where_it_is_asked_for(tmp_path):
    made = trainer(tmp_path, logging_strategy="steps", logging_steps=2)
    made.log_input = True
    made.train()
    logged = [entry for entry in made.state.log_history if "loss" in entry]
    assert logged
    assert all(0 <= entry["input/stalled"] <= 1 for entry in logged)


class Remembering(Classifier):
    """Notes the labels that it is trained on."""

    def __init__(self):
        super().__init__()
        self.batches: list[list[int]] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.batches.append(labels.tolist())
        return super().forward(pixel_values, labels)


def test_a_run_resumes_within_its_second_epoch(tmp_path):
    def trained_on(resume: Any = None) -> list[list[int]]:
        torch.manual_seed(0)
        made = trainer(
            tmp_path, save_strategy="steps", save_steps=1, save_only_model=True, gradient_accumulation_steps=1
        )
        made.model = made.model_wrapped = Remembering()
        made.train(resume_from_checkpoint=resume)
        return made.model.batches

    whole = trained_on()
    place = len(whole) // 2 + 1
    assert trained_on(str(tmp_path / f"checkpoint-{place}")) == whole[place:]
