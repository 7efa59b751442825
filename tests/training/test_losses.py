"""What is summed of a dict that a model or loss function returns, and what is handed back of the rest."""

import copy
import warnings
from collections import OrderedDict
from dataclasses import dataclass, fields

import numpy as np
import pytest
import torch
from torch import nn

from fastload.training.losses import LossTerms
from fastload.training.step import TrainStep
from tests.handwritten import assert_same_weights, sgd

weight = torch.tensor(1.0, requires_grad=True)
ACCURACY = torch.tensor(0.25)


def images_and_labels():
    return torch.randn(8, 4), torch.arange(8) % 2


class Classifier(nn.Module):
    """Returns its loss and an accuracy, as in many training loops."""

    def __init__(self, name="loss"):
        super().__init__()
        self.net, self.name = nn.Linear(4, 2), name

    def forward(self, images, labels):
        logits = self.net(images)
        accuracy = (logits.argmax(1) == labels).float().mean()
        return {self.name: nn.functional.cross_entropy(logits, labels), "accuracy": accuracy}


@dataclass
class ModelOutput(OrderedDict):
    """A dict of the fields that are not None, as Hugging Face's models return."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None

    def __post_init__(self):
        self.update({each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None})

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)


class HuggingFace(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, images, labels):
        logits = self.net(images)
        return ModelOutput(nn.functional.cross_entropy(logits, labels), logits)


@pytest.mark.parametrize("name", ["loss", "class"])
def test_an_accuracy_is_not_added_to_the_loss_and_is_handed_back(name):
    model = Classifier(name)
    batch = images_and_labels()
    expected = {key: value.detach() for key, value in model(*batch).items()}
    step = TrainStep(model, sgd(model))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = step(*batch)
        step(*batch)
    assert torch.equal(out.loss, expected[name])
    assert list(out.losses) == [name]
    assert out.metrics == {"accuracy": expected["accuracy"]}
    if name == "loss":
        assert caught == []
    else:
        (warning,) = caught  # once
        assert str(warning.message).startswith("'accuracy' of the loss's dict carries no gradient")
        assert warning.filename == __file__


def test_numbers_beside_the_loss_are_handed_back_as_the_metrics_that_are_tensors():
    def loss_fn(output, target):
        numbers = {"accuracy": 0.25, "right": 2, "error": np.float32(0.75), "perplexity": 1e300}
        others = {"exact": True, "name": "a", "logits": output, "none": None}
        return {"loss": nn.functional.cross_entropy(output, target), **numbers, **others}

    model = nn.Linear(4, 2)
    out = TrainStep(model, sgd(model), loss_fn)(*images_and_labels())
    expected = {"accuracy": 0.25, "right": 2, "error": 0.75, "perplexity": torch.inf}
    torch.testing.assert_close(out.metrics, {name: torch.tensor(value) for name, value in expected.items()})


def test_a_batch_that_is_a_dict_goes_to_the_model_by_name():
    model = Classifier()
    reference = copy.deepcopy(model)
    step, own = TrainStep(model, sgd(model)), TrainStep(reference, sgd(reference))
    for _ in range(3):
        images, labels = images_and_labels()
        loss = step(labels=labels, images=images).loss
        assert torch.equal(loss, own(images, labels).loss)
    assert_same_weights(model, reference)
    step.profile_memory({"images": images, "labels": labels})


@pytest.mark.parametrize(
    ("args", "named", "got"),
    [((1, 2, 3), {}, "got 3"), ((1,), {}, "got 1"), ((1,), {"targets": 2}, "got 1 and targets")],
)
def test_what_a_loss_function_takes_is_said(args, named, got):
    model = nn.Linear(4, 2)
    with pytest.raises(TypeError, match=rf"inputs and targets; {got}\..* leave loss_fn out"):
        TrainStep(model, sgd(model), nn.CrossEntropyLoss())(*args, **named)


def test_a_hugging_face_output_trains_on_its_loss_and_is_handed_back_without_its_graph():
    model = HuggingFace()
    batch = images_and_labels()
    expected = model(*batch)
    out = TrainStep(model, sgd(model), keep_output=True)(*batch)
    assert torch.equal(out.loss, expected.loss)
    assert type(out.output) is ModelOutput
    assert torch.equal(out.output.logits, expected.logits)
    assert torch.equal(out.output["logits"], expected.logits)
    assert not any(tensor.requires_grad for tensor in out.output.values())


@pytest.mark.parametrize(
    ("names", "returned", "total", "metrics"),
    [
        (None, {"class": weight * 2, "box": weight * 3}, 5, []),  # torchvision's detection models
        ("loss", {"loss": weight * 2, "class": weight, "box": weight}, 2, ["class", "box"]),
        (("class", "box"), {"loss": weight * 2, "class": weight, "box": weight}, 2, ["loss"]),
        ("class", {"class": weight * 2, "accuracy": 0.25}, 2, ["accuracy"]),
        (["class", "frozen"], {"class": weight * 2, "frozen": torch.tensor(3.0), "logits": torch.ones(4)}, 5, []),
    ],
)
def test_the_terms_named_are_summed(names, returned, total, metrics):
    losses = LossTerms(names)(returned)
    assert (losses.total.item(), list(losses.metrics)) == (total, metrics)


@pytest.mark.parametrize(
    ("names", "returned", "error", "message"),
    [
        (None, {"loss": weight, "penalty": weight}, ValueError, r"losses='loss'.*losses=\('loss', 'penalty'\)"),
        (None, {"class": weight, "logits": torch.ones(4, 5)}, TypeError, r"'logits' is a tensor of shape \(4, 5\)"),
        (None, {"class": ACCURACY, "box": ACCURACY}, ValueError, "must carry a gradient; got 'class', 'box' without"),
        ("los", {"loss": weight}, ValueError, "names 'los', but the dict has 'loss'"),
        ("loss", weight, TypeError, r"names entries of a dict, but the loss is a tensor of shape \(\)"),
    ],
)
def test_a_dict_in_doubt_is_refused_with_what_to_write(names, returned, error, message):
    with pytest.raises(error, match=message):
        LossTerms(names)(returned)


def test_the_output_is_handed_back_on_request_alone():
    model = nn.Linear(4, 2)
    images, labels = images_and_labels()
    expected = model(images)
    loss_fn = nn.CrossEntropyLoss()
    out = TrainStep(model, sgd(model), loss_fn, keep_output=True)(images, labels)
    assert torch.equal(out.output, expected)
    assert not out.output.requires_grad
    assert TrainStep(model, sgd(model), loss_fn)(images, labels).output is None


@pytest.mark.parametrize("number", [2**63, 10**400])
def test_a_number_that_no_tensor_holds_is_left_out(number):
    weight = torch.ones(2, requires_grad=True)
    losses = LossTerms()({"loss": weight.sum(), "hash": number, "seed": 7})
    assert list(losses.metrics) == ["seed"]
