"""``TrainStep`` with ``nn.DataParallel``: each replica computes under the step's autocast, in a thread of its own."""

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from fastload.training.step import TrainStep
from tests.handwritten import adamw
from tests.ranks import TOLERANCE, make_batches, make_model, make_step, train, train_alone


class Noting(nn.Linear):
    """Notes on which device it computed, in which dtype, and whether it is a replica that did."""

    def __init__(self):
        super().__init__(6, 3)
        self.noted = []

    def forward(self, images):
        output = super().forward(images)
        # A replica's parameters are copies, no parameters of its own.
        self.noted.append((output.device, output.dtype, not list(self.parameters())))
        return output


class InThreads(nn.DataParallel):
    """Does without GPUs what ``DataParallel`` does: hands on whether autocast is enabled, but not its dtype."""

    def forward(self, images):
        enabled = torch.is_autocast_enabled(images.device.type)

        def compute(part):
            torch.set_autocast_dtype(part.device.type, torch.float16)  # CUDA's in a new thread
            replica = copy.copy(self.module)
            replica._is_replica = True  # as PyTorch marks those that it makes
            with torch.autocast(part.device.type, enabled=enabled):
                return replica(part)

        with ThreadPoolExecutor(2) as threads:
            return torch.cat(list(threads.map(compute, images.chunk(2))))


def step_once(model, precision):
    device = next(model.parameters()).device
    step = TrainStep(model, adamw(model), nn.functional.cross_entropy, precision=precision)
    step(torch.randn(8, 6, device=device), torch.randint(0, 3, (8,), device=device))
    return step


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_autocast_holds_in_the_threads_of_replicas(precision, dtype):
    model = InThreads(Noting())
    step_once(model, precision)
    assert [noted for _, noted, _ in model.module.noted] == [dtype] * 2


def test_outside_of_a_step_the_module_computes_as_ever():
    model = InThreads(Noting())
    step = step_once(model, "bf16")
    images = torch.randn(2, 6, device=model.module.weight.device)
    assert model.module(images).dtype == torch.float32
    assert model(images).dtype == torch.float32
    del step


def test_a_step_takes_its_hooks_with_it_and_lets_go_of_the_model():
    gc.disable()  # as in large trainings
    try:
        for _ in range(2):
            model = InThreads(Noting())
            module = weakref.ref(model.module)
            step_once(model, "bf16")
            assert not model._forward_pre_hooks
            assert not model.module._forward_pre_hooks
            del model
        assert module() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_model_can_be_copied_and_pickled_afterwards(duplicate):
    model = InThreads(Noting())
    step = step_once(model, "bf16")
    duplicated = duplicate(model)
    del step
    images = torch.randn(2, 6, device=model.module.weight.device)
    with torch.autocast(images.device.type, torch.bfloat16):
        assert duplicated(images).dtype == torch.bfloat16
    assert duplicated.module(images).dtype == torch.float32


@pytest.mark.gpu(2)
@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_each_gpu_computes_in_the_step_s_precision(precision, dtype):
    model = nn.DataParallel(Noting().cuda(0), device_ids=[0, 1])
    step_once(model, precision)
    expected = [(torch.device("cuda", index), dtype, True) for index in range(2)]
    assert sorted(model.module.noted, key=lambda noted: noted[0].index) == expected


@pytest.mark.gpu(2)
def test_two_gpus_train_as_one_process():
    model = nn.DataParallel(make_model().cuda(0), device_ids=[0, 1])
    step = make_step(model)
    train(step, [tuple(part.cuda(0) for part in batch) for batch in make_batches()], "epoch")
    alone = train_alone("epoch")
    for trained, expected in ((model.state_dict(), alone["weights"]), (step.ema.state_dict(), alone["ema"])):
        weights = {name.removeprefix("module."): weight.cpu() for name, weight in trained.items()}
        torch.testing.assert_close(weights, dict(expected), **TOLERANCE)
    assert step.updates == alone["updates"]
