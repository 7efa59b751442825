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


@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_an_optimizer_whose_weights_took_the_bad_update_keeps_its_state(make_optimizer):
    model = nn.Linear(8, 5)
    reference = copy.deepcopy(model)
    optimizer, plain = make_optimizer(model), make_optimizer(reference)
    images, targets = torch.randn(4, 8), (torch.randint(0, 5, (4,)), torch.inf)
    step = TrainStep(model, optimizer, with_constant, on_nonfinite="raise")
    assert step(images, targets).skipped == 1  # it does not count
    with pytest.raises(FloatingPointError, match="the weights have taken it"):
        step.flush()
    assert step.updates == 0
    with_constant(reference(images), targets).backward()
    plain.step()
    assert_same_weights(model, reference)
    torch.testing.assert_close(optimizer.state_dict(), plain.state_dict())


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


def with_nan_gradient(output, targets):
    """A finite loss, whose gradients are NaN if ``sick``: those of the root of 0 are inf, and inf times 0 is NaN."""
    labels, sick = targets
    loss = nn.functional.cross_entropy(output, labels)
    return loss + (output * 0).abs().sum().sqrt() if sick else loss


CLIPPING = [{}, {"max_norm": 0.5}, {"clip_value": 0.1}]


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("clipping", CLIPPING, ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_windows_whose_gradients_are_nan_are_skipped_as_if_they_had_not_been(fused, clipping):
    model = nn.Linear(8, 5)
    reference = copy.deepcopy(model)
    batches = [(torch.randn(4, 8), (torch.randint(0, 5, (4,)), place == 2)) for place in range(6)]
    for net, chosen in ((model, batches), (reference, batches[:2] + batches[4:])):
        optimizer = adamw(net, fused=fused)
        step = TrainStep(net, optimizer, with_nan_gradient, accumulate=2, on_nonfinite="skip", **clipping)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for batch in step.epoch(chosen):
                assert step(*batch).loss.isfinite()
        told = ["the gradients of update 2 are not finite, though its losses are: batches 3 to 4."] * (net is model)
        assert [str(warning.message)[:80] for warning in caught] == [text[:80] for text in told]
        assert step.updates == 2
    assert_same_weights(model, reference)


@pytest.mark.parametrize("clipping", CLIPPING, ids=str)
def test_gradients_that_are_nan_raise(clipping):
    model = nn.Linear(8, 5)
    before = copy.deepcopy(model)
    step = TrainStep(model, adamw(model, fused=True), with_nan_gradient, ema=0.5, **clipping)
    step(torch.randn(4, 8), (torch.randint(0, 5, (4,)), True))
    with pytest.raises(
        FloatingPointError, match=r"gradients of update 1 .* batch 1\. torch.autograd.set_detect_anomaly"
    ):
        step.flush()
    assert_same_weights(model, before)
    assert step.updates == 0


def test_in_fp16_gradients_that_are_nan_at_any_scale_are_told_in_the_end():
    """The scaler takes them for an overflow, and would skip all updates for ever."""
    model = nn.Linear(8, 5)
    before = copy.deepcopy(model)
    step = scaled_step(model, adamw(model, fused=True), torch.amp.GradScaler("cpu"), with_nan_gradient)
    images, labels = torch.randn(4, 8), torch.randint(0, 5, (4,))
    for _ in range(100):
        step(images, (labels, True))
    with pytest.raises(FloatingPointError, match="skipped 100 updates in a row, up to update 100: the losses"):
        step.flush()
    assert_same_weights(model, before)


@pytest.mark.usefixtures("late")
def test_gradients_that_are_sparse_or_complex_are_watched_too():
    model = nn.Module()
    model.rows, model.wave = nn.Parameter(torch.ones(4, 2)), nn.Parameter(torch.ones(2, dtype=torch.complex64))

    def loss_fn(model, sick_rows, sick_wave):
        rows = nn.functional.embedding(torch.tensor([1, 2]), model.rows, sparse=True).sum()
        wave = model.wave.abs().sum()
        return rows + wave + sum((part * 0).sqrt() for part, sick in ((rows, sick_rows), (wave, sick_wave)) if sick)

    optimizers = [torch.optim.SparseAdam([model.rows]), torch.optim.SGD([model.wave], lr=0.1)]
    step = TrainStep([model, model], optimizers, lambda model, _, *sick: loss_fn(model, *sick), on_nonfinite="skip")
    assert step(False, False).skipped == 0
    for number, sick in enumerate([(True, False), (False, True)], start=2):
        assert step(*sick).skipped == 1
        with pytest.warns(RuntimeWarning, match=f"gradients of update {number}"):
            step.flush()


def mean_or_zero(output, labels):
    """The mean over the labels that are not padding, 0 if there is none."""
    losses = nn.functional.cross_entropy(output, labels, ignore_index=-1, reduction="sum")
    return losses / (labels >= 0).sum().clamp(min=1)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_window_without_items_is_skipped_and_one_with_some_is_not(scaled, as_tensor):
    model = nn.Linear(8, 5)
    reference = copy.deepcopy(model)
    labels = [torch.full((4,), -1), torch.full((4,), -1), torch.tensor([1, -1, 2, -1]), torch.full((4,), -1)]
    batches = [(torch.randn(4, 8), each) for each in labels]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    settings = {"accumulate": 2, "on_nonfinite": "skip"}
    if scaled:
        step = scaled_step(model, sgd(model), scaler, mean_or_zero, **settings)
    else:
        step = TrainStep(model, sgd(model), mean_or_zero, **settings)
    counts = [(each >= 0).sum() for each in labels]
    weighted = [(*batch, count if as_tensor else int(count)) for batch, count in zip(batches, counts, strict=True)]
    for *batch, items in weighted[:2]:
        step(*batch, items=items)
    with pytest.warns(RuntimeWarning, match=r"items of update 1 must add up .*got no item in batches 1 to 2\."):
        step.flush()
    for *batch, items in weighted[2:]:
        step(*batch, items=items)
    mean_or_zero(reference(batches[2][0]), labels[2]).backward()
    sgd(reference).step()
    torch.testing.assert_close(model.state_dict(), reference.state_dict())
    assert step.updates == 1
    assert not scaled or scaler.get_scale() == 2.0**10


@pytest.mark.parametrize(
    ("items", "error", "message"),
    [
        (-1, ValueError, "at least 0; got -1"),
        (torch.nan, ValueError, "at least 0; got nan"),
        ("4", TypeError, "scalar tensor, or None; got a str"),
        (torch.ones(2), TypeError, r"got a tensor of shape \(2,\)"),
    ],
)
def test_items_that_are_no_number_are_refused(items, error, message):
    model = nn.Linear(8, 5)
    with pytest.raises(error, match=message):
        TrainStep(model, sgd(model), mean_or_zero)(torch.randn(4, 8), torch.zeros(4, dtype=torch.long), items=items)


def test_items_that_the_user_writes_over_have_been_counted():
    """As a loader with fixed addresses does to its batches."""
    model = nn.Linear(8, 5)
    reference = copy.deepcopy(model)
    batches = [(torch.randn(size, 8), torch.randint(0, 5, (size,))) for size in (6, 2)]
    step, items = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), accumulate=2), torch.tensor(0)
    for inputs, labels in batches:
        step(inputs, labels, items=items.fill_(len(labels)))
    inputs, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    nn.functional.cross_entropy(reference(inputs), labels).backward()
    sgd(reference).step()
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


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
