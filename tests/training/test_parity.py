"""Fifty steps of ``TrainStep`` and of the handwritten loop: the same bits, whatever they are combined of."""

import copy

import pytest
import torch

from fastload.training.step import TrainStep
from tests.counts import variants
from tests.handwritten import (
    TinyNet,
    adamw,
    assert_same_weights,
    halving,
    handwritten,
    make_batches,
    overflowing,
    scaled_step,
    sgd,
    weighted_cross_entropy,
)

on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
STEPS, OVERFLOWS = 50, {0, 1, 13, 30, 31, 47}


pytestmark = pytest.mark.usefixtures("repeatable")


def assert_parity(make_optimizer, precision, device, **settings):
    model = TinyNet().to(device)
    reference = copy.deepcopy(model)
    with_scheduler = settings.pop("scheduler", False)
    on_nonfinite = settings.pop("on_nonfinite", "raise")
    overflows = settings.pop("overflows", OVERFLOWS)
    init_scale = settings.pop("init_scale", 2.0**20)
    optimizers = make_optimizer(model), make_optimizer(reference)
    schedulers = [halving(optimizer) if with_scheduler else None for optimizer in optimizers]
    scaled = precision == "fp16"
    batches = overflowing(make_batches(STEPS, device), at=overflows if scaled else ())
    scalers = [torch.amp.GradScaler(device, init_scale=init_scale, growth_interval=9) if scaled else None for _ in "ab"]
    common = {"scheduler": schedulers[0], "on_nonfinite": on_nonfinite, **settings}
    if scaled:
        step = scaled_step(model, optimizers[0], scalers[0], weighted_cross_entropy, **common)
    else:
        step = TrainStep(model, optimizers[0], weighted_cross_entropy, precision=precision, **common)

    losses = [step(*batch).loss for batch in step.epoch(batches)]
    trained = handwritten(
        reference,
        optimizers[1],
        batches,
        loss_fn=weighted_cross_entropy,
        precision=precision,
        scheduler=schedulers[1],
        scaler=scalers[1],
        **settings,
    )
    assert torch.equal(torch.stack(losses), torch.stack(trained.losses))
    assert_same_weights(model, reference)
    assert optimizers[0].param_groups[0]["lr"] == optimizers[1].param_groups[0]["lr"]
    assert step.updates == trained.updates
    assert step.scaler.state_dict() == (scalers[1].state_dict() if scaled else {})
    if "ema" in settings:
        for name, average in trained.ema.state_dict().items():
            assert torch.equal(step.ema.state_dict()[name], average), name
    return trained.updates


CLIPPING = [{}, {"max_norm": 0.5}, {"clip_value": 0.01}]
EXTRAS = [{}, {"scheduler": True}, {"ema": 0.9}, {"scheduler": True, "ema": 0.9}]


@on_devices
@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(
    ("precision", "accumulate", "clipping", "fused"),
    variants(["fp32", "bf16", "fp16"], [1, 3], CLIPPING, [False, True], ways=3),
)
def test_fifty_steps_are_those_of_the_handwritten_loop(precision, accumulate, clipping, fused, device):
    for extras in EXTRAS:
        updates = assert_parity(
            lambda model: adamw(model, fused=fused), precision, device, accumulate=accumulate, **clipping, **extras
        )
        windows = -(-STEPS // accumulate)
        assert updates == windows if precision != "fp16" else 0 < updates < windows


@on_devices
@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda model: sgd(model, dampening=0.1),
        lambda model: sgd(model, dampening=0.1, fused=True),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model: torch.optim.Adagrad(model.parameters(), fused=True),
        lambda model: torch.optim.Adam(model.parameters(), amsgrad=True),
        lambda model: torch.optim.Adam(model.parameters(), capturable=False, foreach=True),
        lambda model: torch.optim.Adam(model.parameters(), amsgrad=True, fused=True),
        lambda model: torch.optim.Adadelta(model.parameters()),
        lambda model: torch.optim.Adagrad(model.parameters()),
        lambda model: torch.optim.Adamax(model.parameters()),
        lambda model: torch.optim.ASGD(model.parameters(), t0=5),
        lambda model: torch.optim.NAdam(model.parameters()),
        lambda model: torch.optim.RAdam(model.parameters()),
        lambda model: torch.optim.RMSprop(model.parameters(), momentum=0.9, centered=True),
        lambda model: torch.optim.Rprop(model.parameters()),
        lambda model: torch.optim.Adafactor(model.parameters()),
    ],
    ids=[
        "sgd",
        "sgd-fused",
        "sgd-plain",
        "adagrad-fused",
        "adam-amsgrad",
        "adam-foreach",
        "adam-amsgrad-fused",
        "adadelta",
        "adagrad",
        "adamax",
        "asgd",
        "nadam",
        "radam",
        "rmsprop",
        "rprop",
        "adafactor",
    ],
)
def test_every_optimizer_skips_as_in_the_handwritten_loop(make_optimizer, device):
    model = TinyNet().to(device)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer = make_optimizer(model)
        optimizer.step()
    except RuntimeError as error:  # fused ones of some releases are for some devices only
        pytest.skip(str(error))
    settings = {"accumulate": 2, "max_norm": 1.0, "scheduler": True}
    assert_parity(make_optimizer, "bf16", device, on_nonfinite="skip", **settings)
    if is_fused_with_momentum(optimizer):  # nor may fp16, which only GPUs compute in, overflow of itself at first
        settings |= {"overflows": OVERFLOWS - {0, 1}, "init_scale": 2.0**20 if device == "cpu" else 2.0**10}
    assert_parity(make_optimizer, "fp16", device, **settings)


def is_fused_with_momentum(optimizer):
    """Whether the handwritten loop cannot bear an overflow at first: it would read momentum that no one has written."""
    return isinstance(optimizer, torch.optim.SGD) and optimizer.defaults["fused"] and optimizer.defaults["momentum"] > 0
