"""``TrainStep`` against the loop that it replaces: the same losses and weights, bit for bit."""

import copy
import itertools
import math
import warnings

import pytest
import torch
from torch import nn
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

from fastload.training.step import TrainStep
from tests.handwritten import (
    Delegating,
    SmallNet,
    adamw,
    assert_same_weights,
    halving,
    handwritten,
    make_batches,
    scaled_step,
    sgd,
)

on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


pytestmark = pytest.mark.usefixtures("repeatable")


class SumOfLosses(nn.Module):
    """Returns its losses, as torchvision's detection models do in training."""

    def __init__(self):
        super().__init__()
        self.net = SmallNet()

    def forward(self, images, labels):
        logits = self.net(images)
        return {"classifier": nn.functional.cross_entropy(logits, labels), "size": logits.square().mean()}


def assert_trains_as_handwritten(make_optimizer, device, *, with_scheduler, scalers=(None, None), **settings):
    model = SmallNet().to(device)
    reference = copy.deepcopy(model)
    batches = make_batches(12, device)
    optimizer, reference_optimizer = make_optimizer(model), make_optimizer(reference)
    scheduler = halving(optimizer) if with_scheduler else None
    reference_scheduler = halving(reference_optimizer) if with_scheduler else None

    step = TrainStep(model, optimizer, nn.functional.cross_entropy, scheduler=scheduler, scaler=scalers[0], **settings)
    losses = [step(*batch).loss for batch in batches]
    step.flush()  # the scheduler moves when the host knows that the last update was made
    expected = handwritten(
        reference, reference_optimizer, batches, scheduler=reference_scheduler, scaler=scalers[1], **settings
    )

    assert torch.equal(torch.stack(losses), torch.stack(expected.losses))
    assert_same_weights(model, reference)
    assert optimizer.param_groups[0]["lr"] == reference_optimizer.param_groups[0]["lr"]
    return step


SETTINGS = [
    {"accumulate": accumulate, "max_norm": max_norm, "with_scheduler": with_scheduler}
    for accumulate, max_norm, with_scheduler in itertools.product([1, 3], [None, 0.5], [False, True])
]


@on_devices
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_trains_as_the_handwritten_loop(precision, settings, make_optimizer, device):
    assert_trains_as_handwritten(make_optimizer, device, precision=precision, **settings)


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_trains_in_fp16_as_the_handwritten_loop(settings, make_optimizer, fused):
    assert_trains_as_handwritten(
        lambda model: make_optimizer(model, fused=fused),
        "cuda",
        scalers=[torch.amp.GradScaler("cuda", init_scale=2.0**8) for _ in range(2)],
        precision="fp16",
        **settings,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_it_recovers_from_an_overflow_as_the_handwritten_loop(max_norm, fused):
    scalers = [torch.amp.GradScaler("cuda", init_scale=2.0**40, backoff_factor=2.0**-32) for _ in range(2)]
    assert_trains_as_handwritten(
        lambda model: adamw(model, fused=fused),
        "cuda",
        with_scheduler=False,
        scalers=scalers,
        precision="fp16",
        accumulate=2,
        max_norm=max_norm,
    )
    assert [scaler.get_scale() for scaler in scalers] == [2.0**8, 2.0**8]


@pytest.fixture
def unfilled_memory_is_nan():
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@on_devices
@pytest.mark.usefixtures("unfilled_memory_is_nan")
@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_in_the_first_batch_is_as_if_it_had_not_been(fused, make_optimizer, max_norm, device):
    model = SmallNet().to(device)
    reference = copy.deepcopy(model)
    (images, labels), good = make_batches(2, device)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    step = scaled_step(model, make_optimizer(model, fused=fused), scaler, max_norm=max_norm, on_nonfinite="ignore")

    assert step(images * math.inf, labels).stepped
    assert scaler.get_scale() == 2.0**7
    assert_same_weights(model, reference)

    step(*good)
    handwritten(
        reference,
        make_optimizer(reference, fused=fused),
        [good],
        precision=step.precision,
        max_norm=max_norm,
        scaler=torch.amp.GradScaler(device, init_scale=2.0**7),
    )
    assert_same_weights(model, reference)


@on_devices
@pytest.mark.parametrize("fused", [False, True])
def test_the_scheduler_does_not_count_a_skipped_update(fused, device):
    model = SmallNet().to(device)
    optimizer = sgd(model, fused=fused)
    scheduler = halving(optimizer)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8)
    step = scaled_step(model, optimizer, scaler, scheduler=scheduler, on_nonfinite="ignore")
    (images, labels), good = make_batches(2, device)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Detected call of `lr_scheduler.step")
        assert step(images * math.inf, labels).skipped == 1
        assert step(*good).skipped == 0
        step.flush()
    assert scheduler.last_epoch == 1
    assert step.updates == 1


@on_devices
def test_losses_in_a_dict_are_summed_and_reported(device):
    model = SumOfLosses().to(device)
    reference = copy.deepcopy(model)
    optimizer, reference_optimizer = sgd(model), sgd(reference)
    step = TrainStep(model, optimizer, precision="fp32")
    for batch in make_batches(4, device):
        out = step(*batch)
        terms = reference(*batch)
        loss = sum(terms.values())
        loss.backward()
        reference_optimizer.step()
        reference_optimizer.zero_grad(set_to_none=True)
        assert torch.equal(out.loss, loss)
        assert out.losses.keys() == terms.keys()
        assert all(torch.equal(out.losses[name], terms[name]) for name in terms)
    assert_same_weights(model, reference)


def test_a_torchvision_detection_model_trains():
    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3, min_size=64, max_size=64
    )
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), max_norm=1.0)
    images = [torch.rand(3, 48, 64), torch.rand(3, 64, 40)]
    targets = [{"boxes": torch.tensor([[4.0, 4.0, 30.0, 36.0]]), "labels": torch.tensor([1])}] * 2
    out = step(images, targets)
    assert set(out.losses) == {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"}
    assert torch.equal(out.loss, sum(out.losses.values()))

    model.eval()
    with pytest.raises(TypeError, match=r"got a list.*call model.train\(\)"):
        step(images, targets)


def test_the_output_is_the_whole_batchs_loss_detached():
    model = SmallNet()
    step = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), accumulate=2, max_norm=math.inf)
    first, second = make_batches(2)
    expected = nn.functional.cross_entropy(copy.deepcopy(model)(first[0]), first[1])

    out = step(*first)
    assert torch.equal(out.loss, expected)
    assert not out.loss.requires_grad
    assert (out.losses, out.stepped, out.grad_norm) == ({}, False, None)
    out = step(*second)
    assert out.stepped
    assert out.grad_norm > 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_grad_norm_is_that_before_clipping():
    model = SmallNet()
    (images, labels), *_ = make_batches(1)
    reference = copy.deepcopy(model)
    nn.functional.cross_entropy(reference(images), labels).backward()
    expected = nn.utils.get_total_norm([parameter.grad for parameter in reference.parameters()])

    out = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), max_norm=1e-3)(images, labels)
    assert torch.equal(out.grad_norm, expected)


@on_devices
@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize("left_over", [1, 2, 3])
def test_flush_averages_over_the_batches_there_are(left_over, max_norm, device):
    model = SmallNet().to(device)
    reference = copy.deepcopy(model)
    batches = make_batches(4 + left_over, device)
    step = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), precision="fp32", accumulate=4, max_norm=max_norm)
    for batch in batches:
        step(*batch)
    step.flush()

    optimizer = sgd(reference)
    handwritten(reference, optimizer, batches[:4], accumulate=4, max_norm=max_norm)
    handwritten(reference, optimizer, batches[4:], accumulate=left_over, max_norm=max_norm)
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


def test_flush_is_a_full_update_and_starts_a_new_window():
    model = SmallNet()
    optimizer = sgd(model)
    scheduler = halving(optimizer)
    step = TrainStep(model, optimizer, nn.CrossEntropyLoss(), accumulate=2, scheduler=scheduler)
    one, two, three = make_batches(3)
    step(*one)
    step.flush()
    assert scheduler.last_epoch == 1
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [step(*two).stepped, step(*three).stepped] == [False, True]


def test_flush_after_a_full_window_does_nothing():
    model = SmallNet()
    optimizer = sgd(model)
    scheduler = halving(optimizer)
    step = TrainStep(model, optimizer, nn.CrossEntropyLoss(), accumulate=2, scheduler=scheduler)
    step.flush()
    for batch in make_batches(2):
        step(*batch)
    before = copy.deepcopy(model)
    step.flush()
    assert_same_weights(model, before)
    assert scheduler.last_epoch == 1


def test_a_batch_that_raises_is_left_out_of_its_window():
    model = nn.Linear(4, 2)
    reference = copy.deepcopy(model)
    batches = [(torch.randn(8, 4), torch.arange(8) % 2) for _ in range(2)]
    step = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), accumulate=2, precision="fp32")
    step(*batches[0])
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        step(torch.randn(8, 5), torch.zeros(8, dtype=torch.long))
    assert step(*batches[1]).stepped
    handwritten(reference, sgd(reference), batches, accumulate=2)
    assert_same_weights(model, reference)


def test_frozen_and_foreign_parameters_keep_out_of_the_norm():
    model = SmallNet()
    head = model[-1]
    step = TrainStep(model, sgd(head), nn.CrossEntropyLoss(), precision="fp32", max_norm=math.inf)
    (images, labels), *_ = make_batches(1)
    reference = copy.deepcopy(model)
    nn.functional.cross_entropy(reference(images), labels).backward()
    out = step(images, labels)
    expected = nn.utils.get_total_norm([parameter.grad for parameter in reference[-1].parameters()])
    assert torch.equal(out.grad_norm, expected)


def build(**changes):
    model = SmallNet()
    arguments = {"optimizer": sgd(model), "loss_fn": nn.CrossEntropyLoss()} | changes
    return TrainStep(model, arguments.pop("optimizer"), arguments.pop("loss_fn"), **arguments)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"precision": "half"}, ValueError, r"'auto', 'fp32', 'bf16', 'fp16'; got 'half'"),
        ({"accumulate": 0}, ValueError, "at least 1.*got 0"),
        ({"accumulate": 2.0}, ValueError, "an int.*got 2.0"),
        ({"accumulate": True}, ValueError, "an int.*got True"),
        ({"max_norm": 0}, ValueError, "above 0, or None.*got 0"),
        ({"max_norm": -1.0}, ValueError, "above 0, or None.*got -1.0"),
        ({"max_norm": math.nan}, ValueError, "above 0, or None.*got nan"),
        ({"clip_value": 0.0}, ValueError, "clip_value must be above 0, or None.*got 0.0"),
        ({"max_norm": 1.0, "clip_value": 0.5}, ValueError, "either max_norm or clip_value.*got 1.0 and 0.5"),
        ({"ema": 1.0}, ValueError, "above 0 and below 1.*got 1.0"),
        ({"on_nonfinite": "stop"}, ValueError, "'raise', 'skip', 'ignore'; got 'stop'"),
        ({"optimizer": []}, ValueError, "at least one; got none"),
        ({"loss_fn": 0.5}, TypeError, "callable, or None.*got 0.5"),
        (
            {"loss_fn": nn.CrossEntropyLoss},
            TypeError,
            r"callable, or None.*got the class CrossEntropyLoss: write CrossEntropyLoss\(\)",
        ),
        ({"scaler": torch.amp.GradScaler("cpu")}, ValueError, "precision='fp16'; got precision='auto'"),
        ({"scaler": 2.0**16, "precision": "fp16"}, TypeError, "torch.amp.GradScaler, or None; got a float"),
        ({"scheduler": "cosine"}, TypeError, "torch.optim.lr_scheduler or timm.scheduler.*got a str"),
        (
            {"scheduler": halving(sgd(SmallNet()))},
            ValueError,
            "the given optimizer's; got a StepLR of another",
        ),
        (
            {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(sgd(SmallNet()))},
            TypeError,
            "needs no metric, or None; got a ReduceLROnPlateau",
        ),
        ({"optimizer": sgd(SmallNet())}, ValueError, "got 6 parameters, none the model's"),
        ({"optimizer": torch.optim.SGD}, TypeError, r"made from model.parameters\(\), .*; got <class .*SGD'>"),
        ({"optimizer": torch.optim.LBFGS([nn.Parameter(torch.ones(1))])}, TypeError, "no closure; got LBFGS"),
    ],
)
def test_bad_arguments_are_refused_with_the_value_and_those_allowed(changes, error, message):
    with pytest.raises(error, match=message):
        build(**changes)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (nn.Linear, TypeError, r"several in a list; got the class Linear: write Linear\(\)"),
        ([SmallNet(), SmallNet], TypeError, r"several in a list; got the class SmallNet: write SmallNet\(\)"),
        ("model", TypeError, "several in a list; got 'model'. Pass the module itself"),
        ({"net": nn.Linear(1, 1)}, TypeError, r"several in a list; got {'net': Linear\("),
        (
            torch.relu,
            TypeError,
            r"several in a list; got <built-in method relu.*let a function be the forward\(\) of a module",
        ),
        ([], ValueError, "a list of at least one; got none"),
    ],
    ids=["class", "class in a list", "text", "dict", "function", "none"],
)
def test_what_is_no_model_is_refused(model, error, message):
    with pytest.raises(error, match=f"model must be a torch.nn.Module, or {message}"):
        TrainStep(model, sgd(SmallNet()), nn.CrossEntropyLoss())


@pytest.mark.parametrize("ema", [None, 0.5])
def test_what_hands_on_to_a_model_trains(ema):
    model = SmallNet()
    step = TrainStep(Delegating(model), sgd(model), nn.CrossEntropyLoss(), ema=ema)
    assert step(*make_batches(1)[0]).stepped
    assert step.ema is None or step.ema.state_dict().keys() == SmallNet().state_dict().keys()


def test_a_class_of_dicts_is_a_loss_fn():
    class Loss(dict):
        def __init__(self, output, target):
            super().__init__(loss=nn.functional.cross_entropy(output, target))

    model = SmallNet()
    assert list(TrainStep(model, sgd(model), Loss)(*make_batches(1)[0]).losses) == ["loss"]


def test_an_optimizer_or_a_scheduler_that_is_given_twice_is_refused():
    model = SmallNet()
    optimizer = sgd(model)
    scheduler = halving(optimizer)
    with pytest.raises(ValueError, match=r"optimizer must .* once.*; got one several times in \[SGD, SGD\]"):
        TrainStep(model, [optimizer, optimizer], nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match=r"scheduler must .* once.*; got one several times in \[StepLR, StepLR\]"):
        TrainStep(model, optimizer, nn.CrossEntropyLoss(), scheduler=[scheduler, scheduler])


def test_several_models_need_a_loss_fn_that_takes_them():
    models = [SmallNet(), SmallNet()]
    with pytest.raises(TypeError, match=r"loss_fn\(\*models, \*batch\); got None"):
        TrainStep(models, sgd(models[0]))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (torch.zeros(4), r"got a tensor of shape \(4,\).*\.mean\(\)"),
        (None, "got a NoneType"),
        (0.5, "got a float"),
        ({}, "got an empty dict"),
        ({"box": 0.5}, "got a dict whose 'box' is a float"),
        ({"logits": torch.zeros(4, 5)}, r"got a dict whose 'logits' is a tensor of shape \(4, 5\)"),
    ],
)
def test_a_loss_that_is_no_scalar_is_refused_with_what_was_returned(loss, message):
    step = build(loss_fn=lambda *_: loss)
    with pytest.raises(TypeError, match=message):
        step(*make_batches(1)[0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("in_a_dict", [False, True])
def test_a_step_without_gradients_is_refused_with_the_way_out(mode, in_a_dict):
    batch, *_ = make_batches(1)
    model = SumOfLosses() if in_a_dict else SmallNet()
    step = TrainStep(model, sgd(model), None if in_a_dict else nn.CrossEntropyLoss())
    with mode(), pytest.raises(ValueError, match=r"gradients are off here; call the step outside torch\.no_grad\(\)"):
        step(*batch)
    assert step(*batch).stepped


@pytest.mark.parametrize("frozen", [False, True])
def test_a_loss_that_is_detached_from_the_model_is_refused(frozen):
    model = SmallNet().requires_grad_(not frozen)
    step = TrainStep(model, sgd(model), lambda output, _: output.mean() if frozen else output.detach().mean())
    with pytest.raises(ValueError, match=r"must carry a gradient; .* does not depend on a parameter.*\.detach\(\)"):
        step(*make_batches(1)[0])


@pytest.mark.parametrize("number", [1, 3])
def test_with_a_loss_fn_a_step_takes_inputs_and_targets(number):
    with pytest.raises(TypeError, match=rf"inputs and targets; got {number}"):
        build()(*[torch.zeros(4, 3, 8, 8)] * number)


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_g12_the_step_never_waits_for_the_device(precision, options, make_optimizer, accumulate):
    model = SmallNet().cuda()
    optimizer = make_optimizer(model, **options)
    step = TrainStep(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        precision=precision,
        accumulate=accumulate,
        max_norm=1.0,
        scheduler=halving(optimizer),
        ema=0.9,
        on_nonfinite="skip",
    )
    batches = make_batches(7, "cuda")
    items = torch.full((), 4, device="cuda")
    for batch in make_batches(2, "cuda"):
        step(*batch, items=items)
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses = [step(*batch, items=items).loss for batch in batches]
        step.flush()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.stack(losses).isfinite().all()


@pytest.mark.gpu
def test_g12_an_overflow_is_learnt_without_a_wait_for_the_device():
    model = SmallNet().cuda()
    optimizer = adamw(model, foreach=True)
    scheduler = halving(optimizer)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**100, backoff_factor=2.0**-92)
    step = TrainStep(
        model, optimizer, nn.CrossEntropyLoss(), precision="fp16", scaler=scaler, scheduler=scheduler, ema=0.9
    )
    batches = make_batches(5, "cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        skipped = [step(*batch).skipped for batch in batches]
        step.flush()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.stack(skipped).tolist() == [1, 0, 0, 0, 0]
    assert (step.updates, scheduler.last_epoch) == (4, 4)
    assert {int(state["step"]) for state in optimizer.state.values()} == {4}


def test_a_step_shows_its_settings():
    model = SmallNet()
    step = TrainStep(model, sgd(model), nn.CrossEntropyLoss(), precision="fp32", accumulate=2, max_norm=1.0, ema=0.99)
    assert repr(step) == (
        "TrainStep(SmallNet, SGD, precision=fp32, accumulate=2, max_norm=1.0, ema=0.99, on_nonfinite=raise)"
    )
