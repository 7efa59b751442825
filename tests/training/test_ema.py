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


class Centred(nn.Module):
    """Assigns its buffer, as DINO's loss does, instead of writing to it."""

    def __init__(self):
        super().__init__()
        self.net = TinyNet()
        self.register_buffer("centre", torch.zeros(5))

    def forward(self, images):
        output = self.net(images)
        self.centre = self.centre * 0.9 + output.detach().mean(0) * 0.1
        return output - self.centre


def trained_centred():
    """A step after four updates, and the average of its model's centre by hand."""
    model = Centred()
    step = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), precision="fp32", ema=0.75)
    average = model.centre.clone()
    for batch in make_batches(4):
        step(*batch)
        average.lerp_(model.centre, 0.25)
    return step, average


def test_a_buffer_that_the_model_assigns_is_averaged():
    step, average = trained_centred()
    assert torch.equal(step.ema.state_dict()["centre"], average)


@pytest.mark.usefixtures("late")
def test_a_buffer_that_the_model_assigns_is_averaged_where_the_host_learns_of_updates_late():
    step, average = trained_centred()
    assert torch.equal(step.ema.state_dict()["centre"], average)


def test_the_model_has_the_average_of_what_it_assigned_inside_the_block_and_its_own_after():
    step, average = trained_centred()
    own = step.model.centre.clone()
    (images, _), *_ = make_batches(1)
    for _ in range(2):
        with step.ema.applied():
            assert torch.equal(step.model.centre, average)
            step.model(images)  # assigns it there, too
        assert torch.equal(step.model.centre, own)
    assert torch.equal(step.ema.state_dict()["centre"], average)


def test_a_buffer_assigned_inside_the_block_alone_is_the_models_own_after_it():
    ema = EMA(model := Centred(), 0.5)
    (images, _), *_ = make_batches(1)
    with ema.applied():
        model(images)
    assert torch.equal(model.centre, torch.zeros(5))
    assert torch.equal(ema.state_dict()["centre"], torch.zeros(5))


def test_a_buffer_that_was_assigned_is_not_written_to_since_it_may_be_another_tensor():
    class Keeping(Centred):
        def forward(self, images):
            self.centre = images
            return self.net(images)

    model = Keeping()
    ema = EMA(model, 0.5)
    (images, _), (others, _) = make_batches(2)
    batches = images.clone(), others.clone()
    model(images)
    ema.update()
    model(others)
    ema.update()
    with ema.applied():
        torch.testing.assert_close(model.centre, images / 2 + others / 2)
    assert torch.equal(images, batches[0])
    assert torch.equal(others, batches[1])
    assert model.centre is others


def test_averages_of_assigned_buffers_are_loaded_and_go_on():
    step, average = trained_centred()
    model = Centred()
    resumed = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), precision="fp32", ema=0.75)
    model.load_state_dict(step.model.state_dict())
    resumed.load_state_dict(copy.deepcopy(step.state_dict()))
    assert torch.equal(resumed.ema.state_dict()["centre"], average)
    resumed(*make_batches(1)[0])
    assert torch.equal(resumed.ema.state_dict()["centre"], average.lerp(model.centre, 0.25))


@pytest.mark.parametrize(
    "assigned",
    [torch.full((7,), 2.0), torch.full((5,), 2.0).half(), torch.full((5,), 2)],
    ids=["shape", "half", "integers"],
)
def test_a_buffer_of_another_kind_begins_a_new_average(assigned):
    ema = EMA(model := Centred(), 0.5)
    saved = ema.state_dict()
    model.centre = assigned
    ema.hold_buffers()
    ema.update()
    torch.testing.assert_close(saved["centre"], assigned)
    model.centre = assigned * 2
    ema.update()
    torch.testing.assert_close(saved["centre"], assigned * 3 // 2 if assigned.is_floating_point() else assigned * 2)
    ema.load_state_dict(copy.deepcopy(saved))


def test_with_static_buffers_what_is_assigned_is_not_looked_up():
    ema = EMA(model := Centred(), 0.5, static=True)
    model.centre = torch.ones(5)
    ema.update()
    assert torch.equal(ema.state_dict()["centre"], torch.zeros(5))


def test_averages_are_not_loaded_where_the_model_has_them():
    ema = EMA(nn.Linear(2, 1), 0.5)
    saved = copy.deepcopy(ema.state_dict())
    with ema.applied(), pytest.raises(RuntimeError, match="leave the block"):
        ema.load_state_dict(saved)


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


class Writing(nn.Module):
    """Has a buffer that it may share."""

    def __init__(self, centre):
        super().__init__()
        self.register_buffer("centre", centre)

    def forward(self, images):
        self.centre.mul_(0.5).add_(images.mean(0), alpha=0.5)
        return images


class Assigning(Writing):
    def forward(self, images):
        self.centre = torch.full((3,), 100.0)
        return images


def test_the_average_of_a_shared_buffer_is_that_of_the_module_that_writes_to_it():
    centre = torch.zeros(3)
    model = nn.Sequential(Writing(centre), Assigning(centre))
    ema, expected = EMA(model, 0.5), torch.zeros(3)
    for _ in range(4):
        model(torch.ones(4, 3))
        ema.update()
        expected = expected.lerp(model[0].centre, 0.5)
    assert torch.equal(ema.state_dict()["0.centre"], expected)
    with ema.applied():
        assert torch.equal(model[0].centre, expected)
