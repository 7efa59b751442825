"""The moving average of weights: what it averages, and how it is applied and taken off again."""

import copy

import pytest
import torch
from torch import nn

from fastload.training.ema import EMA
from fastload.training.step import TrainStep
from tests.handwritten import TinyNet, make_batches, sgd


def test_parameters_and_buffers_are_averaged_and_counts_copied():
    model = TinyNet()
    ema = EMA(model, 0.75)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    for images, _ in make_batches(3):
        model(images)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        ema.update()
        for name, value in model.state_dict().items():
            expected[name] = torch.lerp(expected[name], value, 0.25) if value.is_floating_point() else value.clone()
    assert ema.state_dict().keys() == expected.keys()
    for name, average in ema.state_dict().items():
        assert torch.equal(average, expected[name]), name
    assert ema.state_dict()["2.num_batches_tracked"] == 3


def test_buffers_held_are_averaged_as_they_were():
    model, other = TinyNet(), None
    ema = EMA(model, 0.5)
    (first, _), (second, _) = make_batches(2)
    model(first)
    other = copy.deepcopy(model)
    ema.hold_buffers()
    model(second)
    ema.update()
    expected = 0.5 * torch.zeros(8) + 0.5 * other[2].running_mean
    torch.testing.assert_close(ema.state_dict()["2.running_mean"], expected)


def test_the_model_computes_with_the_averages_inside_the_block_alone():
    model = TinyNet()
    step = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), precision="fp32", ema=0.9)
    for batch in make_batches(4):
        step(*batch)
    averaged = TinyNet()
    averaged.load_state_dict(step.ema.state_dict())
    trained, averages = copy.deepcopy(model), copy.deepcopy(step.ema.state_dict())
    (images, labels), *_ = make_batches(1)
    with step.ema.applied():
        assert torch.equal(model.eval()(images), averaged.eval()(images))
        with pytest.raises(RuntimeError, match=r"leave the block of ema.applied\(\)"):
            step(images, labels)
        with pytest.raises(RuntimeError, match="leave the block"), step.ema.applied():
            pass
    assert torch.equal(model(images), trained.eval()(images))
    assert all(torch.equal(averages[name], average) for name, average in step.ema.state_dict().items())
    with pytest.raises(ZeroDivisionError), step.ema.applied():
        raise ZeroDivisionError
    assert torch.equal(model(images), trained(images))
    step(images, labels)


def test_tied_weights_are_averaged_and_exchanged_once():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    ema = EMA(model, 0.5)
    before = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.add_(1)
    ema.update()
    with ema.applied():
        torch.testing.assert_close(model[1].weight, before + 0.5)
    torch.testing.assert_close(model[1].weight, before + 1)
    assert ema.state_dict().keys() == model.state_dict().keys()


def test_averages_of_another_model_are_refused():
    with pytest.raises(ValueError, match=r"another model: 0\.bias"):
        EMA(nn.Linear(4, 4), 0.5).load_state_dict(nn.Sequential(nn.Linear(4, 4)).state_dict())


@pytest.mark.parametrize("with_real", [False, True])
def test_complex_parameters_are_averaged(with_real):
    model = nn.Module()
    model.weight = nn.Parameter(torch.tensor([1 + 2j, 3j]))
    if with_real:
        model.bias = nn.Parameter(torch.ones(2))
    ema = EMA(model, 0.75)
    with torch.no_grad():
        model.weight.mul_(5)
    ema.update()
    assert ema.state_dict()["weight"].tolist() == [2 + 4j, 6j]


def test_averages_of_another_kind_are_refused_before_any_is_copied():
    ema = EMA(nn.Linear(2, 1), 0.5)
    before = copy.deepcopy(ema.state_dict())
    with pytest.raises(TypeError, match="got a NoneType"):
        ema.load_state_dict(None)
    with pytest.raises(ValueError, match=r"bias must be a tensor of shape \(1,\); got a tensor of shape \(3,\)"):
        ema.load_state_dict({"weight": torch.zeros(1, 2), "bias": torch.zeros(3)})
    assert all(torch.equal(average, before[name]) for name, average in ema.state_dict().items())
