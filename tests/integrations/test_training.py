"""``TrainStep`` with the optimizers and schedulers of frameworks, against a loop that is written by hand."""

import copy
import logging

import accelerate
import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from timm.scheduler import CosineLRScheduler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fastload as fl

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

BATCHES = [(torch.full((2, 3), 0.1 * number), torch.tensor([0, 1])) for number in range(1, 8)]
UPDATES = 3  # of seven batches, three to an update
WHOLE = BATCHES[:3], BATCHES[3:6]
LOSS = nn.CrossEntropyLoss()


def made():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def by_hand(schedule=None, windows=(*WHOLE, BATCHES[6:])):
    """The weights after one epoch that updates after each window."""
    model, optimizer = made()
    for updates, window in enumerate(windows, 1):
        for images, labels in window:
            (LOSS(model(images), labels) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule(optimizer, updates)
    return model.weight


def trained(step, batches=BATCHES):
    for batch in step.epoch(batches):
        step(*batch)
    assert step.updates == UPDATES
    return step.model.weight


@pytest.fixture
def accelerator():
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_an_optimizer_of_accelerate_updates_after_whole_windows(accelerator):
    model, optimizer = made()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    prepared = accelerator.prepare(model, optimizer, scheduler)
    step = fl.TrainStep(*prepared[:2], LOSS, accumulate=3, scheduler=prepared[2])
    halved = lambda optimizer, updates: optimizer.param_groups[0].update(lr=0.5 ** (updates + 1))  # noqa: E731
    torch.testing.assert_close(trained(step), by_hand(halved))
    assert optimizer.param_groups[0]["lr"] == 0.5 ** (UPDATES + 1)
    assert prepared[1].state_dict()["state"]  # the hook that resolves an update is that of the plain one


def test_a_state_is_loaded_into_what_accelerate_has_prepared(accelerator):
    model, optimizer = accelerator.prepare(*made())
    step = fl.TrainStep(model, optimizer, LOSS, accumulate=3)
    for batch in BATCHES[:4]:
        step(*batch)
    saved = copy.deepcopy((step.state_dict(), model.state_dict(), optimizer.state_dict()))
    model, optimizer = accelerator.prepare(*made())
    model.load_state_dict(saved[1])
    optimizer.load_state_dict(saved[2])
    again = fl.TrainStep(model, optimizer, LOSS, accumulate=3)
    again.load_state_dict(saved[0])
    assert again.updates == 1
    for batch in BATCHES[4:6]:
        step(*batch)
        again(*batch)
    torch.testing.assert_close(again.model.weight, step.model.weight)


def test_to_accumulate_in_accelerate_too_is_refused(accelerator):
    accelerator.gradient_accumulation_steps = 3
    model, optimizer = accelerator.prepare(*made())
    step = fl.TrainStep(model, optimizer, LOSS)
    with accelerator.accumulate(model), pytest.raises(RuntimeError, match="pass accumulate=3 to TrainStep"):
        step(*BATCHES[0])


def test_a_scheduler_of_timm_is_told_the_updates_that_were_made():
    model, optimizer = made()
    scheduler = CosineLRScheduler(optimizer, t_initial=10, t_in_epochs=False)
    step = fl.TrainStep(model, optimizer, LOSS, accumulate=3, scheduler=scheduler)
    other = CosineLRScheduler(made()[1], t_initial=10, t_in_epochs=False)

    def as_timm(optimizer, updates):
        other.optimizer = optimizer
        other.step_update(updates)

    torch.testing.assert_close(trained(step), by_hand(as_timm))
    again = fl.TrainStep(model, optimizer, LOSS, accumulate=3, scheduler=CosineLRScheduler(optimizer, t_initial=10))
    again.load_state_dict(step.state_dict())
    assert again.scheduler.state_dict() == scheduler.state_dict()


def test_a_scheduler_of_timm_that_counts_epochs_is_stepped_by_the_loop():
    model, optimizer = made()
    scheduler = CosineLRScheduler(optimizer, t_initial=2)
    step = fl.TrainStep(model, optimizer, LOSS, accumulate=3, scheduler=scheduler)
    trained(step)
    assert optimizer.param_groups[0]["lr"] == 0.5
    scheduler.step(1)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.25)


def test_an_optimizer_of_fabric_updates_after_whole_windows():
    model, optimizer = made()
    _, optimizer = Fabric(accelerator="cpu", devices=1).setup(model, optimizer)
    torch.testing.assert_close(trained(fl.TrainStep(model, optimizer, LOSS, accumulate=3)), by_hand())


class Manual(pl.LightningModule):
    """Trains by a ``TrainStep`` under manual optimization."""

    def __init__(self, **options):
        super().__init__()
        self.automatic_optimization = False
        self.options = options
        self.model, self.plain = made()

    def configure_optimizers(self):
        return self.plain

    def on_train_start(self):
        self.step = fl.TrainStep(self.model, self.optimizers(**self.options), LOSS, accumulate=3)

    def training_step(self, batch):
        self.step(*batch)


@pytest.mark.parametrize(("options", "counted"), [({}, 2), ({"use_pl_optimizer": False}, 0)])
def test_lightnings_global_step_counts_updates_of_its_own_optimizer(options, counted, tmp_path):
    images, labels = (torch.cat(each) for each in zip(*BATCHES[:6], strict=True))
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = pl.Trainer(accelerator="cpu", devices=1, max_epochs=1, default_root_dir=tmp_path, **quiet)
    module = Manual(**options)
    trainer.fit(module, DataLoader(TensorDataset(images, labels), 2))
    assert trainer.global_step == counted
    assert module.step.updates == len(WHOLE)
    torch.testing.assert_close(module.model.weight, by_hand(windows=WHOLE))
