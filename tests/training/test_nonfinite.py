"""Losses that are inf or NaN: told one update late, with what they were and where, and kept from the weights."""

import copy
import warnings

import pytest
import torch
from torch import nn

from fastload.training.step import TrainStep
from tests.handwritten import TinyNet, adamw, assert_same_weights, halving, make_batches, scaled_step, sgd


def terms(output, targets):
    labels, factor = targets
    return {"class": nn.functional.cross_entropy(output, labels), "size": output.square().mean() * factor}


def batches_with(number, factor):
    """Six batches of which one has a loss term that is not finite."""
    batches = make_batches(6)
    return [(images, (labels, factor if place == number else 1.0)) for place, (images, labels) in enumerate(batches)]


def train(step, batches, done):
    for batch in step.epoch(batches):
        done.append(step(*batch))


@pytest.mark.parametrize("moment", ["at once", "late"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_raises_one_update_late_and_names_step_terms_and_place(accumulate, moment, request):
    if moment == "late":
        request.getfixturevalue("late")
    model = TinyNet()
    step = TrainStep(model, adamw(model, fused=True), terms, accumulate=accumulate, ema=0.5)
    update, raised_at = (4, 4) if accumulate == 1 else (2, 5)
    message = rf"update {update} is not finite: batch 4, 3 of its epoch: loss nan = class [\d.]+ \+ size nan\."
    done = []
    with pytest.raises(FloatingPointError, match=message):
        train(step, batches_with(3, torch.nan), done)
    assert len(done) == raised_at
    assert step.updates == update - 1
    assert all(weight.isfinite().all() for weight in [*model.parameters(), *step.ema.state_dict().values()])
    step.flush()  # what was told is told once


def test_the_last_update_of_an_epoch_is_told_by_its_end():
    model = TinyNet()
    step = TrainStep(model, sgd(model), terms)
    done = []
    with pytest.raises(FloatingPointError, match=r"update 6 .*go back to those saved before"):
        train(step, batches_with(5, torch.inf), done)
    assert len(done) == 6


def with_constant(output, targets):
    """A loss whose gradients are finite though it is not itself, so that the scaler finds nothing."""
    labels, constant = targets
    return nn.functional.cross_entropy(output, labels) + constant


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_skipped_windows_are_as_if_they_had_not_been(fused, scaled):
    model = nn.Linear(8, 5)  # no buffers, which see skipped batches too
    reference = copy.deepcopy(model)
    batches = [(torch.randn(4, 8), targets) for _, targets in batches_with(2, torch.inf)]
    averages = []
    for net, chosen in ((model, batches), (reference, batches[:2] + batches[4:])):
        optimizer = adamw(net, fused=fused)
        scheduler = halving(optimizer)
        settings = {"accumulate": 2, "scheduler": scheduler, "ema": 0.5, "on_nonfinite": "skip"}
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        if scaled:
            step = scaled_step(net, optimizer, scaler, with_constant, **settings)
        else:
            step = TrainStep(net, optimizer, with_constant, **settings)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for batch in step.epoch(chosen):
                step(*batch)
        assert [str(warning.message)[:31] for warning in caught] == ["the loss of update 2 is not fin"] * (net is model)
        assert (step.updates, scheduler.last_epoch) == (2, 2)
        averages.append(step.ema.state_dict())
    assert_same_weights(model, reference)
    assert all(torch.equal(averages[0][name], averages[1][name]) for name in averages[0])


def test_ignored_losses_go_into_the_weights_without_a_word():
    model = TinyNet()
    step = TrainStep(model, sgd(model), terms, on_nonfinite="ignore")
    for batch in step.epoch(batches_with(2, torch.nan)):
        step(*batch)
    assert step.updates == 6
    assert not any(weight.isfinite().all() for weight in model.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
def test_g12_the_monitor_never_waits(on_nonfinite, fused):
    model = TinyNet().cuda()
    step = TrainStep(model, adamw(model, fused=fused), nn.CrossEntropyLoss(), on_nonfinite=on_nonfinite, ema=0.9)
    batches = make_batches(8, "cuda")
    batches[5][0].fill_(torch.nan)
    step(*batches[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(FloatingPointError) if on_nonfinite == "raise" else pytest.warns(RuntimeWarning):
            for batch in batches[1:5]:
                step(*batch)
            for batch in batches[5:7]:
                step(*batch)
                torch.cuda.set_sync_debug_mode("default")  # the complaint reads the losses
    finally:
        torch.cuda.set_sync_debug_mode("default")
