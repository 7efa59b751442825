"""Which precision a step trains in: what was asked for, where the device has it."""

import warnings

import pytest
import torch
from torch import nn

from fastload.training.precision import resolve_precision
from fastload.training.step import TrainStep

CPU = torch.device("cpu")


@pytest.mark.parametrize(("asked", "given"), [("auto", "fp32"), ("fp32", "fp32"), ("bf16", "bf16")])
def test_the_cpu_trains_in_fp32_and_bf16_without_a_warning(asked, given):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_precision(asked, CPU) == given


@pytest.mark.parametrize("asked", ["half", "FP16", "16-mixed", "", None, torch.bfloat16])
def test_other_precisions_are_refused_with_those_allowed(asked):
    with pytest.raises(ValueError, match="'auto', 'fp32', 'bf16', 'fp16'; got") as error:
        resolve_precision(asked, CPU)
    assert repr(asked) in str(error.value)


def test_fp16_on_the_cpu_warns_at_the_users_line_and_trains_in_fp32():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="needs an accelerator.*computing in fp32") as caught:
        step = TrainStep(model, optimizer, nn.CrossEntropyLoss(), precision="fp16")
    assert [warning.filename for warning in caught] == [__file__]
    assert step.precision == "fp32"
    assert not step.scaler.is_enabled()
    assert step(torch.randn(8, 4), torch.arange(8) % 2).loss.dtype == torch.float32


def test_a_loop_that_makes_steps_is_warned_once():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            TrainStep(model, optimizer, nn.CrossEntropyLoss(), precision="fp16")
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)], ids=["fp32", "bf16"]
)
def test_the_model_and_loss_compute_in_it_and_the_weights_stay_fp32(precision, dtype):
    seen = []

    def loss_fn(output, target):
        seen.append((output.dtype, torch.is_autocast_enabled("cpu")))
        return nn.functional.cross_entropy(output, target)

    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_fn, precision=precision)
    step(torch.randn(8, 4), torch.arange(8) % 2)
    assert seen == [(dtype, precision != "fp32")]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not torch.is_autocast_enabled("cpu")


def test_fp32_is_fp32_inside_autocast_too():
    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda out, _: out.mean(), precision="fp32")
    with torch.autocast("cpu", torch.bfloat16):
        assert step(torch.randn(8, 4), None).loss.dtype == torch.float32


@pytest.mark.gpu
def test_auto_on_a_gpu_is_bf16_where_it_is_native_else_fp16_with_a_scaler():
    model = nn.Linear(4, 2, device="cuda")
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    assert step.precision == ("bf16" if native else "fp16")
    assert step.scaler.is_enabled() is not native
