"""What a step that raises leaves behind: training goes on with the next batch, without a part of the failed one."""

import copy

import pytest
import torch
from torch import nn

from fastload.training import update_result
from fastload.training.step import TrainStep
from tests.handwritten import LateReadout, adamw, assert_same_weights, handwritten, scaled_step, sgd


def batches_of(number):
    return [(torch.randn(8, 4), torch.arange(8) % 2) for _ in range(number)]


BAD = torch.randn(8, 5), torch.arange(8) % 2  # five features for a model of four


def train(step, batches):
    for batch in step.epoch(batches):
        step(*batch)


class Faulty(torch.autograd.Function):
    """Its backward pass fails, after the layers behind it have got their gradients."""

    @staticmethod
    def forward(_, inputs):
        return inputs.clone()

    @staticmethod
    def backward(*_):
        raise ZeroDivisionError


def test_an_epoch_that_fails_in_its_short_window_does_not_shorten_the_next():
    """Its last window of 2 has one batch when the second fails; the next loop, without ``epoch``, brings three more."""
    model = nn.Linear(4, 2)
    reference = copy.deepcopy(model)
    batches = batches_of(8)
    step = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), accumulate=4, precision="fp32")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        train(step, [*batches[:5], BAD])
    assert [step(*batch).stepped for batch in batches[5:]] == [False, False, True]
    handwritten(reference, sgd(reference), batches, accumulate=4)
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


def test_a_first_batch_that_fails_leaves_a_window_of_full_size():
    model = nn.Linear(4, 2)
    step = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), accumulate=4)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        train(step, [BAD])
    assert [step(*batch).stepped for batch in batches_of(4)] == [False, False, False, True]


def test_a_batch_left_out_of_the_last_window_does_not_hide_its_end():
    model = nn.Linear(4, 2)
    reference = copy.deepcopy(model)
    good = batches_of(3)
    step = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), accumulate=4, precision="fp32")
    epoch = step.epoch([good[0], BAD, *good[1:]])
    assert not step(*next(epoch)).stepped
    bad = next(epoch)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        step(*bad)
    assert [step(*batch).stepped for batch in epoch] == [False, True]
    handwritten(reference, sgd(reference), good, accumulate=3)
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


def test_a_failing_backward_pass_drops_its_window():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    reference = copy.deepcopy(model)
    batches = batches_of(4)
    step = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), accumulate=2, precision="fp32")
    step(*batches[0])
    hook = model[0].register_forward_hook(lambda _, __, output: Faulty.apply(output))
    with pytest.raises(ZeroDivisionError):
        step(*batches[1])
    hook.remove()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [step(*batch).stepped for batch in batches[2:]] == [False, True]
    handwritten(reference, sgd(reference), batches[2:], accumulate=2)
    assert_same_weights(model, reference)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_an_update_that_fails_leaves_nothing_to_the_next(max_norm, fused):
    """In fp16, where a scaler remembers what it has unscaled."""
    model = nn.Linear(4, 2)
    reference = copy.deepcopy(model)
    failed, *good = batches_of(3)
    optimizer, own = adamw(model, fused=fused), adamw(reference, fused=fused)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in range(2)]
    step = scaled_step(model, optimizer, scalers[0], max_norm=max_norm)

    def fail(*_):
        raise MemoryError

    hook = optimizer.register_step_pre_hook(fail)
    with pytest.raises(MemoryError):
        step(*failed)
    hook.remove()
    for batch in good:
        step(*batch)
    handwritten(reference, own, good, scaler=scalers[1], max_norm=max_norm)
    assert_same_weights(model, reference)
    assert step.updates == 2


class InterruptedOnce(LateReadout):
    interrupts = 1

    def read(self):
        if InterruptedOnce.interrupts:
            InterruptedOnce.interrupts -= 1
            raise KeyboardInterrupt
        return super().read()


def test_an_interrupted_readout_is_read_again(monkeypatch):
    """Ctrl-C while the host waits for the device: the update was made, and counts once."""
    monkeypatch.setattr(update_result, "AsyncReadback", InterruptedOnce)
    model = nn.Linear(4, 2)
    step = TrainStep(model, adamw(model, fused=True), nn.CrossEntropyLoss(), ema=0.5)
    step(*batches_of(1)[0])
    with pytest.raises(KeyboardInterrupt):
        step.flush()
    assert step.updates == 1


@pytest.mark.usefixtures("late")
def test_averages_that_are_applied_lose_no_update():
    model = nn.Linear(4, 2)
    step = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), ema=0.5)
    averages, before = step.ema, copy.deepcopy(model.state_dict())
    step(*batches_of(1)[0])
    with averages.applied(), pytest.raises(RuntimeError, match=r"leave the block of ema.applied\(\)"):
        step.flush()
    assert step.updates == 1
    expected = {name: (before[name] + weight) / 2 for name, weight in model.state_dict().items()}
    torch.testing.assert_close(step.ema.state_dict(), expected)
